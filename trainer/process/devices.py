"""`python -m phasewise.trainer.process.devices`: what jax computes on here, as JSON, for those who should not hold the devices."""

import json
import sys


def main() -> int:
    """Print platform, kind and number."""
    import jax

    devices = jax.devices()
    print(json.dumps({"platform": jax.default_backend(), "kind": devices[0].device_kind, "devices": len(devices)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
