//! What the table must hold of a client, by the rules of order in the spec: what was acknowledged
//! has happened. A client goes on only when its message is acknowledged, so there is nothing to
//! guess, but for one case that the client itself sees to (see `Action::Old` in `clients.rs`).

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

/// An online, or a handshake.
#[derive(Debug, Clone, PartialEq)]
pub struct Word {
    pub id: Option<String>,
    pub sent: Timestamp,
    /// The sender's clock is ahead of everybody's: the time of receipt counts, which is after this.
    pub received_after: Option<Timestamp>,
    pub facts: Value,
    pub dispatchers: Value,
    pub tags: Value,
}

/// A client as it must be in the end.
#[derive(Debug, Clone, Default)]
pub struct Model {
    /// The online that it is or was connected by.
    pub word: Option<Word>,
    pub is_here: bool,
    /// Something is not acknowledged yet, or it is still to be seen what holds.
    pub is_open: bool,
    /// Topic and hash of what can never be processed.
    pub letters: BTreeSet<(String, String)>,
}

impl Model {
    pub fn online(&mut self, word: Word) {
        self.word = Some(word);
        self.is_here = true;
    }

    pub fn gone(&mut self) {
        self.is_here = false;
    }

    /// What the row must be of; none if there must be no row.
    pub fn row(&self) -> Option<&Word> {
        self.word.as_ref().filter(|_| self.is_here)
    }
}
