//! Errors of the engine: each says what is wrong, where, and what the reader can do about it.

use std::path::{Path, PathBuf};

/// The engine's result type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong in the engine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What the caller handed in cannot be used: a text, a clip, an option or a file of theirs.
    #[error("{0}")]
    Input(String),
    /// A model file does not hold what the network needs.
    #[error("{path}: {reason}", path = path.display())]
    Model {
        /// The offending file or folder.
        path: PathBuf,
        /// What is wrong with it and what to do.
        reason: String,
    },
    /// The operating system refused a file operation.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's own words.
        source: std::io::Error,
    },
    /// A graphics card cannot be used, or no longer.
    #[error("{0}")]
    Device(String),
    /// The job was cancelled by its owner; not a failure.
    #[error("cancelled")]
    Cancelled,
    /// A tensor operation failed: a defect of Myna or of the device, not of the input.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// Something that should be impossible; the text says which invariant broke.
    #[error("internal error: {0}")]
    Internal(String),
}

impl Error {
    /// Bad input from the user.
    pub fn input(message: impl Into<String>) -> Self {
        Self::Input(message.into())
    }

    /// A model file or folder that cannot be used as it is.
    pub fn model(path: impl AsRef<Path>, reason: impl Into<String>) -> Self {
        Self::Model { path: path.as_ref().to_owned(), reason: reason.into() }
    }

    /// A refused file operation.
    pub fn io(path: impl AsRef<Path>, source: std::io::Error) -> Self {
        Self::Io { path: path.as_ref().to_owned(), source }
    }

    /// A graphics card that cannot be used.
    pub fn device(reason: impl Into<String>) -> Self {
        Self::Device(reason.into())
    }

    /// A broken invariant.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::Internal(message.into())
    }

    /// Whether the user can mend it by handing in something else (exit code 2 of the command line).
    pub fn is_bad_input(&self) -> bool {
        matches!(self, Self::Input(_) | Self::Model { .. } | Self::Io { .. })
    }
}
