//! The list of the dialects, and their settings.

use crate::{Dialect, HandshakeTopicLevels, handshake, status};
use domain::DialectName;

/// All dialects. A topic that belongs to two dialects would have two owners, so the topics of
/// different dialects must not overlap. A test checks this.
pub const DIALECTS: &[&dyn Dialect] = &[&status::StatusDialect, &handshake::HandshakeDialect];

/// The settings of the dialects. Most dialects have no settings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DialectSettings {
    /// The topic levels of the handshake dialect.
    pub handshake_topics: HandshakeTopicLevels,
}

/// Returns the dialect with this name. Returns `None` if no dialect has this name.
#[must_use]
pub fn find_dialect(name: &DialectName) -> Option<&'static dyn Dialect> {
    find_in(DIALECTS, name)
}

/// Returns the dialect with this name in the list.
pub(crate) fn find_in(
    dialects: &[&'static dyn Dialect],
    name: &DialectName,
) -> Option<&'static dyn Dialect> {
    dialects
        .iter()
        .find(|dialect| dialect.name() == *name)
        .copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Channel;

    fn settings_with_status_topic() -> DialectSettings {
        DialectSettings {
            handshake_topics: HandshakeTopicLevels {
                status_level: Some("status".into()),
                ..HandshakeTopicLevels::default()
            },
        }
    }

    #[test]
    fn each_dialect_is_found_by_its_name() {
        for dialect in DIALECTS {
            let found = find_dialect(&dialect.name()).unwrap();
            assert_eq!(found.name(), dialect.name());
        }
        assert!(find_dialect(&DialectName::from("no-such-dialect".to_owned())).is_none());
    }

    #[test]
    fn names_in_the_database_do_not_change() {
        let names: Vec<_> = DIALECTS.iter().map(|dialect| dialect.name()).collect();
        for stored_name in ["status", "handshake"] {
            assert!(names.contains(&DialectName::from_static(stored_name)));
        }
    }

    #[test]
    fn names_channels_and_topics_are_unique() {
        let settings = settings_with_status_topic();
        for (index, dialect) in DIALECTS.iter().enumerate() {
            for other in &DIALECTS[..index] {
                assert_ne!(dialect.name(), other.name());
            }
        }
        let topics: Vec<_> = DIALECTS
            .iter()
            .flat_map(|dialect| dialect.topics(&settings))
            .collect();
        for (index, topic) in topics.iter().enumerate() {
            for other in &topics[..index] {
                assert_ne!(topic.channel(), other.channel());
                assert!(!topic.overlaps(other), "{topic:?} and {other:?} overlap");
            }
        }
    }

    #[test]
    fn each_dialect_uses_only_its_own_channels() {
        for dialect in DIALECTS {
            let belongs = |channel: Channel| channel.dialect().name() == dialect.name();
            let topics = dialect.topics(&settings_with_status_topic());
            assert!(topics.iter().all(|topic| belongs(topic.channel())));
        }
    }
}
