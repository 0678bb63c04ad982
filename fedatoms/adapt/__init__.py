"""Personal models for clients that join after training: fitted, saved and loaded; imports runs and below."""

from typing import TYPE_CHECKING

from fedatoms.core.lazy import lazily

if TYPE_CHECKING:
    from fedatoms.adapt.fitting import inputs_of, load_personal, personal_model, personalise, save_personal

__all__ = ["inputs_of", "load_personal", "personal_model", "personalise", "save_personal"]
if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, dict.fromkeys(__all__, "fitting"))
