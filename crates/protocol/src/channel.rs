//! Channels: the kinds of topics that a dialect has.

use std::fmt;

use crate::Dialect;

/// The direction of the messages on a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the service to the client.
    ToClient,
    /// From the client to the service.
    FromClient,
}

/// The kind of a client's topic. Each dialect defines its channels as constants.
#[derive(Clone, Copy)]
pub struct Channel {
    dialect: &'static dyn Dialect,
    name: &'static str,
    direction: Direction,
}

impl Channel {
    /// Creates a channel of a dialect. Two channels of a dialect may have the same name if their
    /// directions are different.
    #[must_use]
    pub const fn new(
        dialect: &'static dyn Dialect,
        name: &'static str,
        direction: Direction,
    ) -> Self {
        Self {
            dialect,
            name,
            direction,
        }
    }

    /// Returns the dialect that uses this channel.
    #[must_use]
    pub fn dialect(self) -> &'static dyn Dialect {
        self.dialect
    }

    /// Returns the name of the channel. The name is also the value of a metric label.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Returns the direction of the messages on this channel.
    #[must_use]
    pub fn direction(self) -> Direction {
        self.direction
    }

    /// Returns the channel with the same name and this direction.
    #[must_use]
    pub fn with_direction(self, direction: Direction) -> Self {
        Self { direction, ..self }
    }
}

impl PartialEq for Channel {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
            && self.direction == other.direction
            && self.dialect.name() == other.dialect.name()
    }
}

impl Eq for Channel {}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("dialect", &self.dialect.name().as_str())
            .field("name", &self.name)
            .field("direction", &self.direction)
            .finish()
    }
}
