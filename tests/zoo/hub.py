"""Networks of Hugging Face's transformers, built from small configurations: no weights are loaded."""

from collections.abc import Callable

from torch import nn

from zoo.convolutional import CLASSES
from zoo.sequences import WORDS


def of_config(name: str, **settings: object) -> Callable[[], nn.Module]:
    """Returns the factory of a network of transformers, by the name of its class."""

    def build() -> nn.Module:
        import transformers

        kind = getattr(transformers, name)
        network: nn.Module = kind(kind.config_class(num_labels=CLASSES, **settings))
        return network

    return build


SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
HUB: dict[str, Callable[[], nn.Module]] = {
    "ViT": of_config("ViTForImageClassification", image_size=16, patch_size=4, **SMALL),
    "ResNet": of_config(
        "ResNetForImageClassification", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"
    ),
    "ConvNeXt V2": of_config("ConvNextV2ForImageClassification", hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
    "RegNet": of_config(
        "RegNetForImageClassification", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=4
    ),
    "MobileViT": of_config(
        "MobileViTForImageClassification",
        image_size=32,
        hidden_sizes=[8, 8, 8],
        neck_hidden_sizes=[8, 8, 8, 8, 8, 8, 8],
        num_attention_heads=2,
    ),
    "SegFormer": of_config(
        "SegformerForSemanticSegmentation",
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[8, 16],
        patch_sizes=[7, 3],
        strides=[2, 2],
        num_attention_heads=[1, 2],
        mlp_ratios=[2, 2],
        decoder_hidden_size=8,
    ),
    "BERT": of_config("BertForSequenceClassification", vocab_size=WORDS, max_position_embeddings=16, **SMALL),
}
