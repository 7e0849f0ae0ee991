"""Named errors for users of the library."""


class UnusablePackageError(ImportError):
    """A package that the project is built on is missing, or cannot be loaded; the text says what to install."""


class ArtifactError(ValueError):
    """An artifact cannot be used. Subclasses name the kind of damage; the text names the part."""


class ArtifactNotFoundError(ArtifactError):
    """There is no artifact at the given path."""


class ComputedIdError(RuntimeError):
    """An ID that the model computes is no row of its table; the message names both."""


class ForeignFileError(ArtifactError):
    """The file or directory was not written by this project."""


class NewerVersionError(ArtifactError):
    """The artifact was written by a newer release than this one can read."""


class ManifestError(ArtifactError):
    """The manifest is damaged or contradicts itself."""


class MissingPartError(ArtifactError):
    """A part that the manifest names does not exist."""


class PartSizeError(ArtifactError):
    """A part's size differs from the manifest (truncated, or a wrong manifest)."""


class ChecksumError(ArtifactError):
    """A part's bytes have changed since the artifact was written."""


class TargetError(ArtifactError):
    """The artifact has no target of the requested name, or this machine lacks the target's devices."""


class RowsMemoryError(ArtifactError):
    """The system does not hold the rows in memory as requested: locked, or on certain NUMA nodes."""


class DeltaError(ArtifactError):
    """A delta was made for another artifact, or from other rows than the model holds."""


class CheckpointError(ValueError):
    """A checkpoint cannot be read, or does not fit the model it is loaded into."""


class SchemaError(ValueError):
    """A schema of a table of examples is not valid; the message names the field."""


class CheckpointWriteError(CheckpointError):
    """A checkpoint of a run cannot be written, as on a full disk."""


class PlanError(ValueError):
    """A sharding plan does not fit the tables or the devices."""


class AnswerLogError(ValueError):
    """A file of an answer log, or the labels to join it with, cannot be used; the message says why."""


class ExportError(ValueError):
    """A model cannot be exported as requested."""


class VerificationError(ExportError):
    """The artifact's predictions exceed the error bound of its rows' scales."""


class DataWarning(UserWarning):
    """Data can be read, and is most likely not meant as it is read."""
