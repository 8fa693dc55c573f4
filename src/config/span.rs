//! Durations as people write them.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

/// A length of time, written "250ms", "2s", "10m", "1h 30m".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(Duration);

impl Span {
    /// As the standard library's duration.
    #[must_use]
    pub fn get(self) -> Duration {
        self.0
    }
}

impl From<Duration> for Span {
    fn from(duration: Duration) -> Self {
        Self(duration)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse::<jiff::SignedDuration>()
            .ok()
            .and_then(|signed| Duration::try_from(signed).ok())
            .map(Self)
            .ok_or_else(|| de::Error::custom(format!("{text:?} is not a duration such as \"20s\"")))
    }
}
