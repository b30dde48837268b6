"""``python -m fedgraft.kernels`` compiles the kernels into the package."""

import sys

from fedgraft.kernels import build

sys.exit(build.main())
