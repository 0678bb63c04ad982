"""Ambiguities of the paper: what it leaves open or contradicts, the possible readings, and the one we take."""

from typing import NamedTuple

from fedatoms.core.lookup import find


class Reading(NamedTuple):
    """An ambiguity of the paper; the first of its ``options`` is the one we take."""

    name: str
    about: str
    paper: str
    options: tuple[str, ...]
    why: str

    @property
    def taken(self) -> str:
        """The option we take."""
        return self.options[0]


_TABLES = (
    Reading(
        "regime",
        "Tables 1, 2, 3",
        "5 local epochs in the text; in the appendix, for all methods, 10 epochs, batch 10, rate 0.01, momentum 0.9.",
        (
            "Table 1 as FedDC's code (5 epochs, batch 50, rate 0.1), Tables 2 and 3 as the appendix says",
            "the appendix for all tables",
        ),
        "600 rounds, 5 epochs and FedDyn's 0.01 are defaults of FedDC's code; with them plain FedAvg matches Table 1.",
    ),
    Reading(
        "rounds",
        "Tables 1, 2, 3",
        "T = 600 for CIFAR, T = 10 for Tiny-ImageNet; 200 rounds in the appendix, and for the number of clients.",
        ("600 in Table 1 (Tiny-ImageNet: 10), 200 in Tables 2 and 3", "200 everywhere"),
        "T is given with the global setting, 200 with the training time of personalised methods.",
    ),
    Reading(
        "global-model",
        "Table 1",
        "The accuracy of the global model on the whole test set.",
        ("the mean of all clients' last models", "the mean of the sampled clients", "the server's model"),
        "FedDyn's and FedDC's code plot it, and only it gives the paper's FedAvg: the others are 3 to 5 points lower.",
    ),
    Reading(
        "final-score",
        "Table 1",
        "Nothing on which round is scored; the mean of three seeds.",
        ("the mean of the evaluations in the last 100 rounds", "the last round", "the best round"),
        "Accuracies swing from round to round; the other two are reported beside it.",
    ),
    Reading(
        "personal-score",
        "Tables 2, 3",
        "The accuracy of local models; FedAvg and FedProx are fine-tuned for 10 epochs.",
        (
            "all clients, after a last local pass of 10 epochs for every method",
            "all clients, the mean of the last ten rounds",
            "the sampled clients of the last round",
        ),
        "FedRep's code has such a pass, and then every method has the same number of local epochs at the end.",
    ),
    Reading(
        "shards",
        "Tables 1, 2, 3",
        "M K' shards of one class, K' of them on each client; also: 2 or 5 classes on each client.",
        ("shards at random, so a client may have two of one class", "K' different classes on each client"),
        "The rule of FedRep's code, which the paper follows; --distinct is the other reading.",
    ),
    Reading(
        "atoms",
        "Table 1",
        "9 atoms in each experiment.",
        ("9 atoms", "all 25 atoms of a 5 x 5 kernel"),
        "As written. 25 (the presets with -atoms25) gain as much and compress nothing; figures (b), (c) and, by "
        "the server's model, (d) were first run with them (paper-results).",
    ),
    Reading(
        "initialisation",
        "Table 1",
        "Nothing on how atoms and coefficients start.",
        (
            "Fourier-Bessel functions as atoms, as in DCFNet, coefficients of the plain network's variance",
            "cosines of low frequency as atoms (dct)",
            "random orthonormal atoms, as in Tables 2 and 3",
            "Kaiming for both",
        ),
        "The best of the first three on held-out images, FedAvg and FedDyn in four partitions: on average 62.06, 61.83 "
        "and 61.78 (paper-results/search-start). One seed hardly tells them apart.",
    ),
    Reading(
        "weights",
        "Tables 1, 2, 3",
        "p_k = n_k / n, where n counts the samples of the selected clients; the objective sums over all M.",
        ("n_k over the samples of the sampled clients (SCAFFOLD, FedDyn, FedDC: a plain mean)", "n_k over all samples"),
        "Clients of these tables have equally many images, so sampled clients weigh the same in any case.",
    ),
    Reading(
        "controls",
        "Table 1",
        "No setting for SCAFFOLD and FedDC.",
        (
            "FedDC's 0.01 and a server rate of 1, moves divided by the first learning rate as in FedDC's code",
            "the same, divided by the current learning rate, the algorithms' own rule",
        ),
        "Of the four plain cells on CIFAR-10 it is nearer to the paper in three, and the same in one (paper-results).",
    ),
    Reading(
        "clipping",
        "Tables 2, 3",
        "Not mentioned; SGD with a rate of 0.01, momentum 0.9 and batches of 10.",
        ("gradients clipped to a norm of 1 in every method", "none, as in FedRep's code (momentum 0.5)"),
        "Without it FedPAC and LG-FedAvg end in nan and many clients' models collapse (paper-results).",
    ),
    Reading(
        "fedprox-mu",
        "Tables 1, 2",
        "mu = 0.0001.",
        ("mu / 2 times the squared distance", "mu times it, as in FedDC's code"),
        "FedProx is defined with the half.",
    ),
)
_TINY = (
    Reading(
        "tiny-clients",
        "Tiny-ImageNet",
        "20 clients in the text and in Table 1, 1,000 in Tables 2 and 3.",
        ("20 in Table 1, 1,000 in Tables 2 and 3", "20 in all of them"),
        "The columns say so, and the training times name 1,000 clients.",
    ),
    Reading(
        "tiny-participation",
        "Tiny-ImageNet, Table 1",
        "10 % of the clients in each round, which is 2 of 20.",
        ("2 of 20, as written", "all 20"),
        "Two clients see a fifth of the classes in (20, 20): 33 to 40 % after 10 rounds is hard to believe. Only 2 of "
        "20 was run.",
    ),
    Reading(
        "tiny-pre-training",
        "Tiny-ImageNet",
        "A pre-trained ResNet18; neither the weights nor the size of the images are named.",
        ("random weights, 64 x 64 images", "torchvision's ImageNet weights"),
        "Those weights could not be had. In Table 2 Local's 12.89 and 6.13 are far below what such features give.",
    ),
    Reading(
        "tiny-layers",
        "Tiny-ImageNet",
        "Nothing on which layers of ResNet18 are decomposed.",
        ("the 3 x 3 convolutions", "the 3 x 3 and the first, 7 x 7", "all convolutions"),
        "With 9 atoms a 3 x 3 kernel loses nothing, so pre-trained filters stay exact; the group's later code does so.",
    ),
    Reading(
        "tiny-test",
        "Tiny-ImageNet, Tables 2, 3",
        "Nothing on clients' own test images.",
        ("all test images of the client's classes", "a split like that of the training images"),
        "With 1,000 clients a split leaves less than one image for each class.",
    ),
)
_PERSONAL = (
    Reading(
        "personalisation",
        "Tables 2, 3",
        "Local atoms train under fixed coefficients; nothing on the order, on where they start, or on the head.",
        (
            "local atoms first, from the client's last ones; then all else from the received model",
            "global training first, then local atoms under the new coefficients",
        ),
        "Coefficients at round t are those that were received. A client starts from the first atoms that it receives.",
    ),
    Reading(
        "personal-head",
        "Tables 2, 3",
        "Local models are built of local atoms and shared coefficients.",
        ("the head is local too", "the head is the global one"),
        "The text does not name it, but with a global head CIFAR-100 ends 48 and 28 points below the printed numbers, "
        "with a local one 3.3 and 2.9 (paper-results). On Tiny-ImageNet, though, the paper's other local heads fail.",
    ),
    Reading(
        "fine-tuning",
        "Table 2",
        "The models are fine-tuned on clients' data for 10 epochs.",
        ("all of the model", "the head"),
        "The sentence says the models, and FedRep's code does so too: its list of what to freeze is a list of lists, "
        "so nothing is frozen. --personal finetune-head is the other reading.",
    ),
    Reading(
        "lg-fedavg",
        "Table 2",
        "One global head, local representations.",
        ("the last two linear layers are global, as in FedRep's code", "the last one, as in FedPAC's code"),
        "The paper adapts both codes; its partitions are those of FedRep's.",
    ),
)
_COMMUNICATION = (
    Reading(
        "head",
        "Communication",
        "The head maps features to labels.",
        ("the last linear layer", "all linear layers"),
        "The first linear layer is most of a LeNet: with it in the fast part nothing would be saved.",
    ),
    Reading(
        "fast-groups",
        "Communication",
        "Text: atoms in every round. Algorithm 2: atoms and head in every round.",
        ("atoms and head", "atoms alone"),
        "The algorithm is more precise; --fast atoms is the other reading.",
    ),
    Reading(
        "slow-part",
        "Communication",
        "Algorithm 2 trains coefficients on clients in every round and returns them in some.",
        ("train and discard", "freeze in fast rounds", "keep on the client"),
        "As written, though atoms are then fitted to coefficients that the server does not have.",
    ),
    Reading(
        "first-round",
        "Communication",
        "Coefficients travel if beta t is a natural number, for t = 0, 1, ...",
        ("they travel at t = 0", "first at t = 1 / beta"),
        "0 is natural here, or beta = 1 would not be Algorithm 1.",
    ),
    Reading(
        "counted-parameters",
        "Communication figure",
        "The number of transmitted parameters.",
        ("up, and up and down, both shown", "up only", "up and down only"),
        "The slow part must go down again to a client that missed its last version, which eats much of the saving.",
    ),
    Reading(
        "target-accuracy",
        "Communication figure",
        "52 % on CIFAR-100 (100, 20), which costs FedAvg 2,500 million parameters; Table 1 has FedAvg at 42.14.",
        (
            "what FedAvg has over its last rounds, and the highest accuracy that all reach, of the server's model",
            "52 % of clients' own models",
            "52 % of the global model",
        ),
        "No global FedAvg of the paper reaches 52 %; clients' own models do (64.10 in Table 2; ours after 180 rounds).",
    ),
    Reading(
        "fedpara-parameters",
        "Communication figure",
        "FedPara communicates 1,250 parameters, over twice ours (500 million); its size is not given.",
        ("1,250 million; gamma = 0.4", "1,250"),
        "Half of FedAvg's 2,500 million in equally many rounds is what gamma = 0.4 gives.",
    ),
)
_FIGURES = (
    Reading(
        "variance",
        "Variance figure",
        "10 repeated trainings, the mean squared distance from their mean; neither task nor rounds are given.",
        ("CIFAR-10 (100, 5), filters and raw factors, as they are and by their squared move", "raw filters only"),
        "Raw variances depend on the scale at the start, which differs between the two networks.",
    ),
    Reading(
        "clients",
        "Figure of the number of clients",
        "5 classes each, 200 rounds, from 2 to 40 clients in a round; no algorithm and no steps between.",
        ("FedAvg with 2, 5, 10, 20, 30 and 40 of 100 clients", "another algorithm"),
        "FedAvg is the example of the neighbouring figures.",
    ),
    Reading(
        "synthetic",
        "Synthetic figure",
        "Two Gaussians at (2, 2) and (-2, -2) with covariance Sigma; 5 and 25 models.",
        ("Sigma = I, labels 1 and -1, no bias, 25 independent models", "another Sigma"),
        "The simplest; 25 = 5 x 5 are meant as latent clients, but independent models only show what more clients do.",
    ),
    Reading(
        "training-loss",
        "Training loss, loss landscape",
        "FedAvg with and without decomposition, lower from the 20th round; no task. The landscape: 25 epochs.",
        ("CIFAR-10 (100, 2), all clients' data, a landscape of reconstructed filters", "(100, 5), or one of factors"),
        "The landscape's losses fall from 2.24 to 1.72. With two classes each our server's test loss (plain and with 9 "
        "atoms, seed 0) passes 1.72 between rounds 20 and 30: 2.157 and 2.097 in round 10, 1.952 and 1.961 in 20, "
        "1.566 and 1.436 in 30. With five it has by round 10: 1.645 and 1.610. Only reconstructed filters are a space "
        "that both networks have.",
    ),
    Reading(
        "absent-results",
        "Appendix",
        "Dirichlet partitions, IID data and more methods are said to be in the appendix.",
        ("nothing to compare with", "what the published version may have"),
        "The source that we have holds no such table.",
    ),
)
_THEORY = (
    Reading(
        "sampling-term",
        "Theorem 5.5",
        "D has (M^2 - m^2) / (m^2 M^2 (M^2 - 1)); its derivation sums M^2 terms, each with that factor.",
        ("both, as printed and with M^2 times as much (derived)", "as printed"),
        "Without latent clients the same step is made with the factor M: the printed one forgets M^2.",
    ),
    Reading(
        "start-term",
        "Theorems 5.5, F.1",
        "The distance at the start has the factor mu^2 / 4; the proof's v has (gamma + 1) times the distance.",
        ("both, as printed and with gamma + 1 (derived)", "as printed"),
        "(L / 2) v / (gamma + T) with the proof's own v gives it.",
    ),
    Reading(
        "step-size",
        "Theorem F.1",
        "gamma = max(8 L / mu, E); the proof needs eta at most to double within E / beta steps.",
        ("both, E as printed and E / beta (derived)", "as printed"),
        "The rate may fall to less than half in E / beta steps if gamma is below E / beta - 1.",
    ),
    Reading(
        "gradient-bound",
        "Assumption 5.4",
        "|grad F_k|^2 <= G^2 + |grad F|^2 is assumed, |grad F_k|^2 <= G^2 is used.",
        ("|grad F_k|^2 <= G^2", "the assumption as printed"),
        "The divergence of weights is bounded by G^2 alone.",
    ),
    Reading(
        "iterations",
        "Theorem 5.5, Remark 5.6",
        "T is the number of iterations in the theorem, of communication rounds in the remark; E counts epochs.",
        ("T as the theorem has it, a number of steps", "communication rounds"),
        "The proof has one gradient step in each t and an aggregation every E of them: T / E rounds.",
    ),
    Reading(
        "independence",
        "Proposition 5.1, Theorem 5.5",
        "The m^2 products of coefficients and atoms are taken as independent, and as a random sample of M^2.",
        ("as the paper's assumption, which does not hold", "as true"),
        "Only 2 m objects are independent: to first order the variance is that of FedAvg.",
    ),
)
READINGS: dict[str, Reading] = {
    each.name: each for each in (*_TABLES, *_TINY, *_PERSONAL, *_COMMUNICATION, *_FIGURES, *_THEORY)
}


def reading(name: str) -> Reading:
    """Returns a reading by name.

    >>> reading("head").taken
    'the last linear layer'
    """
    return find(name, READINGS, "reading")
