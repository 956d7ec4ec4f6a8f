"""``python -m penstock.bench``."""

import sys

from penstock.bench import main
from penstock.errors import PenstockError

if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except PenstockError as error:
        sys.exit(f"penstock bench: {error}")
