"""Networks for sequences and patches at toy width: recurrent, attention, mixing."""

import torch
from torch import Tensor, nn

from zoo.convolutional import CLASSES, conv_norm

WORDS = 11


class Recurrent(nn.Module):
    """Token ids, an LSTM or GRU, and a classifier on its last state."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.words, self.chain = nn.Embedding(WORDS, 8), kind(8, 8, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        outputs, _ = self.chain(self.words(ids))
        logits: Tensor = self.head(outputs[:, -1])
        return logits


def lstm() -> nn.Module:
    return Recurrent(nn.LSTM)


def gru() -> nn.Module:
    return Recurrent(nn.GRU)


class Encoder(nn.Module):
    """Patches of images by a convolution, a transformer encoder with dropout, and the mean token."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.patches, self.places = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.zeros(1, 16, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.places
        logits: Tensor = self.head(self.encoder(tokens).mean(1))
        return logits


class Attended(nn.Module):
    """Convolutions, then attention over their pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Sequential(conv_norm(3, 8, 3, 2), conv_norm(8, 8, 3, 2)), nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        pixels = self.norm(self.stem(x).flatten(2).transpose(1, 2))
        mixed, _ = self.attention(pixels, pixels, pixels, need_weights=False)
        logits: Tensor = self.head((pixels + mixed).mean(1))
        return logits


class Mixing(nn.Module):
    """Mixes the places of tokens, then their channels."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm, self.across, self.along = nn.LayerNorm(width), nn.Linear(tokens, tokens), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(x).relu()


def mixer() -> nn.Module:
    patches = (nn.Conv2d(3, 8, 4, 4), nn.Flatten(2), Turn(), Mixing(16, 8), Mean(), nn.Linear(8, CLASSES))
    return nn.Sequential(*patches)


class Turn(nn.Module):
    """Channels last."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


class Mean(nn.Module):
    """The mean over tokens."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)
