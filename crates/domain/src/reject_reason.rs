//! The reasons for which a message becomes a dead letter.

use std::fmt;
use std::str::FromStr;

/// The reason for which a message can never be processed.
///
/// The set of reasons is fixed, because the reason is a metric label and a filter of the command
/// `dead-letters list`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RejectReason {
    /// The payload is not valid JSON.
    InvalidJson,
    /// The payload is JSON, but a field is missing or has the wrong type.
    InvalidSchema,
    /// A string contains NUL, which PostgreSQL cannot store.
    InvalidCharacters,
    /// A field is longer than its limit.
    ValueTooLong,
    /// The payload is larger than the limit for its topic.
    PayloadTooLarge,
    /// The message was published to a topic that belongs to no client.
    UnknownTopic,
    /// The database rejected the row that results from the message.
    RejectedByDatabase,
}

/// A text that is not the name of a [`RejectReason`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown reason {unknown_name:?}; expected one of {}",
    RejectReason::comma_separated_names()
)]
pub struct UnknownRejectReason {
    unknown_name: String,
}

impl RejectReason {
    /// All reasons.
    pub const ALL: [Self; 7] = [
        Self::InvalidJson,
        Self::InvalidSchema,
        Self::InvalidCharacters,
        Self::ValueTooLong,
        Self::PayloadTooLarge,
        Self::UnknownTopic,
        Self::RejectedByDatabase,
    ];

    /// Returns the name of the reason in metrics, in the database and on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidJson => "invalid_json",
            Self::InvalidSchema => "invalid_schema",
            Self::InvalidCharacters => "invalid_characters",
            Self::ValueTooLong => "value_too_long",
            Self::PayloadTooLarge => "payload_too_large",
            Self::UnknownTopic => "unknown_topic",
            Self::RejectedByDatabase => "rejected_by_database",
        }
    }

    /// Returns one sentence about the reason, for documentation and command-line help.
    #[must_use]
    pub const fn description(self) -> &'static str {
        match self {
            Self::InvalidJson => "The payload is not valid JSON.",
            Self::InvalidSchema => {
                "A field of the message is missing, has the wrong type, or is nested too deeply."
            }
            Self::InvalidCharacters => "A string contains NUL, which PostgreSQL cannot store.",
            Self::ValueTooLong => "A field, such as message_id, is longer than its limit.",
            Self::PayloadTooLarge => "The payload is larger than the limit for its topic.",
            Self::UnknownTopic => "The message was published to a topic that belongs to no client.",
            Self::RejectedByDatabase => {
                "The message is valid, but the database rejected the row that results from it."
            }
        }
    }

    fn comma_separated_names() -> String {
        Self::ALL.map(Self::as_str).join(", ")
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for RejectReason {
    type Err = UnknownRejectReason;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let mut reasons = Self::ALL.into_iter();
        reasons
            .find(|reason| reason.as_str() == name)
            .ok_or_else(|| UnknownRejectReason {
                unknown_name: name.to_owned(),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_can_be_parsed_from_its_name() {
        for reason in RejectReason::ALL {
            assert_eq!(reason.as_str().parse(), Ok(reason));
            assert_eq!(reason.to_string(), reason.as_str());
        }
    }

    #[test]
    fn error_for_an_unknown_name_lists_every_name() {
        let error = "wrong".parse::<RejectReason>().unwrap_err().to_string();
        assert!(error.contains("\"wrong\""), "{error}");
        for reason in RejectReason::ALL {
            assert!(error.contains(reason.as_str()), "{error}");
        }
    }

    #[test]
    fn every_description_is_one_sentence() {
        for reason in RejectReason::ALL {
            let description = reason.description();
            assert!(description.ends_with('.'), "{reason}: {description}");
            assert_eq!(description.matches('.').count(), 1, "{reason}");
        }
    }
}
