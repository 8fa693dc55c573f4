//! Explains the events of a client by the messages that the client has sent.
//!
//! The model does not know whether a message without an acknowledgement was processed, and whether the
//! broker published a last will before the client connected again. It therefore follows all possible
//! sequences of presence transitions, and keeps those that agree with the observed events. Each
//! transition has a number, and the history contains the number of each observed transition.
//! Transitions that were merged in one batch have no event, but their numbers are used up.

use std::collections::{BTreeMap, BTreeSet};

/// Something that can change the presence of a client, in the order of its occurrence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PresenceStep {
    /// An online message with this content. It is certain that an acknowledged message takes effect.
    Online { revision: u64, is_certain: bool },
    /// An offline message, a last will, or an end of the connection by the startup sweep.
    Offline { is_certain: bool },
    /// A heartbeat, which can connect the client with its latest content.
    Heartbeat,
    /// The client has sent nothing after the messages that are acknowledged. In embedded mode, the
    /// effects of these messages are committed, and their events are visible.
    AllCommitted,
}

/// A possible state of a client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModelState {
    pub is_connected: bool,
    /// Revision of the latest content. `None` for an unknown client.
    pub revision: Option<u64>,
    /// Number of presence transitions so far.
    pub transitions: u64,
}

/// An event of the client, with the number of its transition in the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObservedEvent {
    Online { number: u64, revision: u64 },
    Updated { revision: u64 },
    Offline { number: u64 },
}

/// A possible explanation of the events so far: the state, and the number of explained events.
type Candidate = (ModelState, usize);

/// The possible explanations, each with the minimum number of messages that were processed a second time.
type Candidates = BTreeMap<Candidate, u32>;

/// The messages and the events of a client.
pub struct Explanation<'a> {
    pub steps: &'a [PresenceStep],
    pub observed: &'a [ObservedEvent],
    /// Maximum number of messages that were processed a second time. An external broker delivers
    /// messages again to a restarted `ingest` process.
    pub max_repeats: u32,
    /// Whether the events of acknowledged messages are visible, and takeovers are known: with the embedded
    /// broker.
    pub commits_before_acknowledging: bool,
}

/// Number of steps after which a message is not processed a second time.
const REPEAT_WINDOW: usize = 16;

impl Explanation<'_> {
    /// Returns the states that explain all events, starting from one of `starts`. Returns the number of
    /// the first step that is impossible, and the maximum number of explained events, if there is none.
    pub fn find(&self, starts: &BTreeSet<ModelState>) -> Result<BTreeSet<ModelState>, String> {
        let visible = self.visible_states(starts);
        let mut candidates = Candidates::new();
        for start in starts {
            self.add(&mut candidates, *start, 0, 0);
        }
        let mut max_explained = 0;
        for (index, step) in self.steps.iter().enumerate() {
            if self.max_repeats > 0 {
                self.add_repeats(&mut candidates, index);
            }
            let mut next = Candidates::new();
            for (candidate, repeats) in candidates {
                self.apply(&mut next, candidate, repeats, *step, &visible);
            }
            candidates = next;
            let explained = candidates.keys().map(|(_, explained)| *explained).max();
            max_explained = max_explained.max(explained.unwrap_or(0));
            if candidates.is_empty() {
                return Err(format!(
                    "step {index} ({step:?}) does not agree with the events after the first \
                     {max_explained}"
                ));
            }
        }
        if self.max_repeats > 0 {
            self.add_repeats(&mut candidates, self.steps.len());
        }
        let complete = candidates
            .keys()
            .filter(|(_, explained)| *explained == self.observed.len());
        let states: BTreeSet<ModelState> = complete.map(|(state, _)| *state).collect();
        if states.is_empty() {
            let event = self.observed.get(max_explained);
            return Err(format!(
                "no message explains the event {event:?}, number {max_explained} of the round"
            ));
        }
        Ok(states)
    }

    /// Returns what a reader knows after each number of events: the revision of the content of a
    /// connected client.
    fn visible_states(&self, starts: &BTreeSet<ModelState>) -> Vec<Option<u64>> {
        let start = starts.iter().find(|start| start.is_connected);
        let mut visible = vec![start.and_then(|start| start.revision)];
        for event in self.observed {
            visible.push(match event {
                ObservedEvent::Online { revision, .. } | ObservedEvent::Updated { revision } => {
                    Some(*revision)
                }
                ObservedEvent::Offline { .. } => None,
            });
        }
        visible
    }

    fn apply(
        &self,
        next: &mut Candidates,
        (state, explained): Candidate,
        repeats: u32,
        step: PresenceStep,
        visible: &[Option<u64>],
    ) {
        let mut add = |state| {
            self.add(next, state, explained, repeats);
        };
        match step {
            PresenceStep::Online {
                revision,
                is_certain,
            } => {
                add(state.connected(revision));
                if self.commits_before_acknowledging && state.is_connected {
                    add(state.taken_over(revision));
                }
                if !is_certain {
                    add(state);
                }
            }
            PresenceStep::Offline { is_certain } => {
                add(state.disconnected());
                if !is_certain {
                    add(state);
                }
            }
            PresenceStep::Heartbeat => {
                add(state);
                if let Some(revision) = state.revision {
                    add(state.connected(revision));
                }
            }
            PresenceStep::AllCommitted => {
                let content = state.revision.filter(|_| state.is_connected);
                if !self.commits_before_acknowledging || visible[explained] == content {
                    add(state);
                }
            }
        }
    }

    /// Adds a candidate, and all candidates that explain the next events with the same state. Returns
    /// those that are new or need fewer repeats than before.
    fn add(
        &self,
        candidates: &mut Candidates,
        state: ModelState,
        mut explained: usize,
        repeats: u32,
    ) -> Vec<Candidate> {
        let mut added = Vec::new();
        loop {
            let next_event = self.observed.get(explained);
            // The number of the next transition is used up already.
            if let Some(number) = next_event.and_then(|event| event.number())
                && number < state.transitions
            {
                return added;
            }
            let min_repeats = candidates.entry((state, explained)).or_insert(u32::MAX);
            if repeats < *min_repeats {
                *min_repeats = repeats;
                added.push((state, explained));
            }
            if !next_event.is_some_and(|event| event.is_explained_by(state)) {
                return added;
            }
            explained += 1;
        }
    }

    /// Adds the candidates after messages before the step `index` were processed a second time.
    fn add_repeats(&self, candidates: &mut Candidates, index: usize) {
        let recent = &self.steps[index.saturating_sub(REPEAT_WINDOW)..index];
        let mut new: Vec<Candidate> = candidates.keys().copied().collect();
        while let Some((state, explained)) = new.pop() {
            let repeats = candidates[&(state, explained)] + 1;
            if repeats > self.max_repeats {
                continue;
            }
            for step in recent {
                let repeated = match step {
                    PresenceStep::Online { revision, .. } => state.connected(*revision),
                    PresenceStep::Offline { .. } => state.disconnected(),
                    PresenceStep::Heartbeat | PresenceStep::AllCommitted => continue,
                };
                if repeated != state {
                    new.extend(self.add(candidates, repeated, explained, repeats));
                }
            }
        }
    }
}

impl ModelState {
    fn connected(self, revision: u64) -> Self {
        Self {
            is_connected: true,
            revision: Some(revision),
            transitions: self.transitions + u64::from(!self.is_connected),
        }
    }

    /// Another connection has replaced the connection. This has a number in the history, but no event.
    fn taken_over(self, revision: u64) -> Self {
        Self {
            transitions: self.transitions + 1,
            ..self.connected(revision)
        }
    }

    fn disconnected(self) -> Self {
        Self {
            is_connected: false,
            transitions: self.transitions + u64::from(self.is_connected),
            ..self
        }
    }
}

impl ObservedEvent {
    fn number(self) -> Option<u64> {
        match self {
            Self::Online { number, .. } | Self::Offline { number } => Some(number),
            Self::Updated { .. } => None,
        }
    }

    fn is_explained_by(self, state: ModelState) -> bool {
        match self {
            Self::Online { number, revision } => {
                state.is_connected
                    && state.transitions == number
                    && state.revision == Some(revision)
            }
            Self::Updated { revision } => state.is_connected && state.revision == Some(revision),
            Self::Offline { number } => !state.is_connected && state.transitions == number,
        }
    }
}
