"""Image files, decoded by Pillow: only those formats, and only that size, that the caller asks for."""

import os
import warnings
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedatoms.core.border import check_size, open_regular
from fedatoms.core.lookup import one_line

LARGEST = 2**24  # bytes of a file; what Pillow reads before it knows the image's size is no more


class Unreadable(ValueError):
    """A file that Pillow does not decode; the message says why, and does not name it."""


class OtherSize(ValueError):
    """An image of another width and height."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height


def read_picture(
    path: Path, formats: tuple[str, ...], mode: Literal["L", "RGB"], size: tuple[int, int]
) -> npt.NDArray[np.uint8]:
    """Decodes an image of one width and height into (height, width), or with colours into (height, width, 3)."""
    from PIL import Image, UnidentifiedImageError

    with open_regular(path) as file:
        check_size(os.fstat(file.fileno()).st_size, f"{path}", LARGEST)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", Image.DecompressionBombWarning)
                with Image.open(file, formats=formats) as image:
                    if image.size != size:
                        raise OtherSize(*image.size)
                    return np.asarray(image.convert(mode))
        except OtherSize:
            raise
        except UnidentifiedImageError:  # its message names an object of Python
            raise Unreadable(f"whatever its name says, it is none of {', '.join(formats)}") from None
        except Exception as error:  # a damaged file can raise anything
            raise Unreadable(one_line(error)[:200]) from None
