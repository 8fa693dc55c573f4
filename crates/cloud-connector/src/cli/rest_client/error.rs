//! Errors of commands that use the REST API, and their exit codes.

use std::process::ExitCode;

/// Why a command that uses the REST API failed. Each text names the cause and the fix.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum RestError {
    /// An option, an environment variable or a file with options is missing or invalid.
    #[error("{0}")]
    Usage(String),
    /// The connector sent no response, or no connector was found.
    #[error("{0}")]
    Unreachable(String),
    /// The connector is overloaded or shutting down. The same request can succeed later.
    #[error("{0}")]
    Temporary(String),
    /// The connector rejected the API key.
    #[error("{0}")]
    Rejected(String),
    /// The connector has the endpoint, but not the client.
    #[error("{0}")]
    NotFound(String),
    /// The connector rejected the request, or the operation failed.
    #[error("{0}")]
    Failed(String),
}

impl RestError {
    /// Returns the error for an invalid argument.
    #[expect(clippy::needless_pass_by_value, reason = "an argument of map_err")]
    pub(in crate::cli) fn usage(error: anyhow::Error) -> Self {
        Self::Usage(format!("{error:#}; correct the arguments of the command"))
    }

    /// Returns the exit code of the command.
    pub(in crate::cli) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Temporary(_) | Self::Rejected(_) | Self::NotFound(_) | Self::Failed(_) => {
                ExitCode::FAILURE
            }
            Self::Usage(_) => ExitCode::from(2),
            Self::Unreachable(_) => ExitCode::from(3),
        }
    }

    /// Returns whether the same request can succeed later.
    pub(in crate::cli) fn is_temporary(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Temporary(_))
    }
}
