"""The site's hooks take these two from here; they live in `infra_lab.texts`."""

from infra_lab.texts import TO, Language

__all__ = ["TO", "Language"]
