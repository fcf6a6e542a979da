"""The card and the manifest of an imported model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from models.checkpoint.assembly import UNTRAINED, Network, Rest
from models.checkpoint.contents import Kind
from models.decisions import Decisions
from models.manifest import PUBLISHED_MEAN, PUBLISHED_STD, InputRule, Manifest

# Not calibrated. Above one half is positive in the published code, boxes and regions alike (spec §4.5, 8 and 9.1).
# The temperature is the one that it ships for MS-CXR, films of the same hospital as those of training (spec §9.2).
PUBLISHED_DECISIONS = Decisions(
    temperature=0.1, default_threshold=0.5, review_band=0.1, box_threshold=0.5, region_threshold=0.5
)
_WHAT: Mapping[Kind, str] = {
    "ChEX": "ChEX: Interactive Localization and Region Description in Chest X-rays (Müller et al., ECCV 2024).",
    "CheXzero": "The two encoders of CheXzero (Tiu et al., 2022) in a network of the architecture of ChEX.",
    "GPT-2": "A GPT-2 language model in a network of the architecture of ChEX.",
}
_LICENCE = "that of the publisher of the weights; see the model card"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a model came from.

    place: a name of the file for people: the source's name, and the path inside it; sha256: of that file
    """

    name: str
    version: str
    kind: Kind
    place: str
    sha256: str
    step: int | None


def manifest_of(provenance: Provenance, network: Network, *, rest: Rest | None) -> Manifest:
    """Make the manifest, without hashes. If the rest comes from another model, input and decisions are that model's."""
    untrained = _untrained(network)
    mixed = len(set(network.origins.values())) > 1
    manifest = Manifest(
        name=provenance.name,
        version=provenance.version,
        licence=_LICENCE,
        trained_on=f"what its publisher says of {provenance.place}"
        + (f"; untrained: {untrained}" if untrained else ""),
        intended_use=(
            "demonstration and tests of the program; never any clinical use"
            if untrained
            else "research; never the basis of a clinical decision"
        ),
        gray="mimic_jpg",
        input=InputRule(
            size=network.sizes.image_encoder.image_size, mean=PUBLISHED_MEAN, std=PUBLISHED_STD, resize="via_256"
        ),
        sizes=network.sizes,
        decisions=PUBLISHED_DECISIONS,
        origins=network.origins if mixed else {},
    )
    if rest is None:
        return manifest
    other = rest.manifest
    return replace(
        manifest,
        gray=other.gray,
        input=replace(other.input, size=manifest.input.size),
        decisions=other.decisions,
        report=other.report,
    )


def model_card(provenance: Provenance, network: Network) -> str:
    """Write the card."""
    untrained = _untrained(network)
    warning = (
        f"**Not a trained model: {untrained} have learned nothing.** Boxes, probabilities and sentences say nothing "
        "about any film. It must never be used for a patient, not even as a hint.\n\n"
        if untrained
        else ""
    )
    step = f", step {provenance.step} of its training" if provenance.step is not None else ""
    mixed = len(set(network.origins.values())) > 1
    parts = (
        "".join(f"\n  - {part}: {origin}" for part, origin in network.origins.items()) if mixed else " all from there"
    )
    return f"""# {provenance.name} {provenance.version}

{warning}{_WHAT[provenance.kind]}
Brought into this program's form by `python -m models.checkpoint`. The numbers are the publisher's, in float32.

- Source: `{provenance.place}` ({provenance.kind}){step}.
- SHA-256 of that file: `{provenance.sha256}`.
- Parameters: {network.parameters:,}.
- Parts:{parts}
- Licence: the licence of these weights is that of their publisher; the data that they were trained on has terms of its
  own. This program gives no right to either; ask there before you use them or pass them on. The vocabularies in
  `vocab/` have their licences beside them.
- Use: research. Not a medical device; nothing it says may be the basis of a clinical decision.
- Thresholds: **not calibrated**. One half, as in the published code, for findings, boxes and regions; the probabilities
  are no frequencies. Set `decisions` in `manifest.toml` on films of your own before you read anything into them.
- Input: frontal chest films with the gray values of MIMIC-CXR-JPG (min-max, inverted where MONOCHROME1, equalized).
- Performance here: not measured. What was published holds for the published data alone.
"""


def _untrained(network: Network) -> str:
    return ", ".join(part for part, origin in network.origins.items() if UNTRAINED in origin)
