//! Drops QoS 0 messages that another process forwards, and those of clients that are over their budget.
//!
//! A flood of QoS 0 messages cannot be slowed down: MQTT has no flow control for them. All messages of the
//! session wait behind the flood, so it must be dropped quickly. The filter runs in the event loop of the
//! connection, before a message is copied, and allocates no memory for a dropped message.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::IngestDeps;
use super::deferred_heartbeats::{DeferOutcome, DeferredHeartbeat, DeferredHeartbeats};
use super::message_selection::is_for_other_process;
use crate::ingest::metrics::{DropReason, ReceiveCounters};
use protocol::{Channel, ClientTopic, InboundMessage};

/// Drops QoS 0 messages over the budget, except the latest heartbeat.
pub(super) struct Qos0Filter {
    deps: Arc<IngestDeps>,
    pub counters: ReceiveCounters,
    pub deferred_heartbeats: Mutex<DeferredHeartbeats>,
    /// Whether the last message that was not dropped is a heartbeat over the budget.
    is_last_over_budget: AtomicBool,
}

impl Qos0Filter {
    pub fn new(deps: Arc<IngestDeps>) -> Self {
        Self {
            counters: ReceiveCounters::new(&deps.topics),
            deferred_heartbeats: Mutex::default(),
            is_last_over_budget: AtomicBool::new(false),
            deps,
        }
    }

    /// Charges a QoS 0 message to the budget of its client, unless another process forwards the message.
    /// Returns whether the message is dropped.
    pub fn is_dropped(&self, topic: &str, payload: &[u8]) -> bool {
        let (channel, key) = match self.deps.topics.split(topic) {
            Some((_, channel, client)) => (Some(channel), client),
            None => (None, topic),
        };
        if is_for_other_process(self.deps.messages, channel, payload) {
            return true;
        }
        if self.deps.client_budgets.try_charge(key, payload.len()) {
            return false;
        }
        let reason = if is_heartbeat(channel, payload) {
            let mut heartbeats = self.deferred_heartbeats.lock();
            if !heartbeats.replace(key, || self.deps.next_receive_time()) {
                // The first heartbeat of a window is returned, so that it can be deferred.
                self.is_last_over_budget.store(true, Ordering::Relaxed);
                return false;
            }
            DropReason::LaterHeartbeat
        } else {
            DropReason::OverBudget
        };
        self.counters.count_received(channel);
        self.counters.count_dropped(reason, key);
        true
    }

    /// Returns whether the budget did not cover the QoS 0 message for which
    /// [`is_dropped`](Self::is_dropped) returned false last.
    pub fn take_is_over_budget(&self) -> bool {
        self.is_last_over_budget.swap(false, Ordering::Relaxed)
    }

    /// Defers a heartbeat. Drops any other message.
    pub fn drop_or_defer(
        &self,
        topic: Option<ClientTopic>,
        message: InboundMessage,
        reason: DropReason,
    ) {
        let channel = topic.as_ref().map(|topic| topic.channel);
        let Some(topic) = topic.filter(|_| is_heartbeat(channel, &message.payload)) else {
            self.counters.count_dropped(reason, &message.topic);
            return;
        };
        let client = topic.client.clone();
        let heartbeat = DeferredHeartbeat { topic, message };
        let outcome = self.deferred_heartbeats.lock().defer(heartbeat);
        match outcome {
            DeferOutcome::Deferred => {}
            DeferOutcome::ReplacedEarlier => {
                let reason = DropReason::LaterHeartbeat;
                self.counters.count_dropped(reason, client.as_str());
            }
            DeferOutcome::Dropped => self.counters.count_dropped(reason, client.as_str()),
        }
    }
}

fn is_heartbeat(channel: Option<Channel>, payload: &[u8]) -> bool {
    payload.is_empty()
        && channel.is_some_and(|channel| protocol::is_response_or_heartbeat(channel, payload))
}
