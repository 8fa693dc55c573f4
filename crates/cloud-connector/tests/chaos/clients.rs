//! A simulated client that performs its planned actions. When the connection closes, the client
//! reconnects and resends its messages until the broker has acknowledged them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::connection::{Connection, LogEntry};
use crate::dialect::{self, Effect, Message};
use crate::event_model::PresenceStep;
use crate::gate::FleetSendLimit;
use crate::model::{ExpectedState, Online};
use crate::plan::{Action, ClockKind, DeploymentMode, Profile, Step};
use crate::random::Random;

/// The expected state and the log of a client. The check at the end of a round reads the history.
#[derive(Default)]
pub struct History {
    pub expected: ExpectedState,
    pub log: Vec<LogEntry>,
}

/// State that all simulated clients share.
pub struct FleetContext {
    pub broker_address: String,
    pub mode: DeploymentMode,
    /// Number of messages that the broker has acknowledged.
    pub acknowledged_messages: AtomicU64,
}

pub struct SimulatedClient {
    pub profile: Profile,
    pub history: Arc<Mutex<History>>,
    context: Arc<FleetContext>,
    random: Random,
    connection: Option<Connection>,
    /// Number of connection attempts so far. This is also the number of the latest connection.
    connection_attempts: u32,
    /// Number of the connection on which the latest online message was acknowledged.
    latest_online_connection_number: u32,
    /// Revision of the content of the latest online message. Each new content gets the next
    /// revision.
    last_revision: u64,
    /// Duration by which the client's clock is behind the real time.
    clock_setback: SignedDuration,
    /// `sent` time of the latest online message.
    last_sent_at: Timestamp,
}

impl SimulatedClient {
    pub fn new(profile: Profile, context: Arc<FleetContext>, random: Random) -> Self {
        Self {
            profile,
            history: Arc::default(),
            context,
            random,
            connection: None,
            connection_attempts: 0,
            latest_online_connection_number: 0,
            last_revision: 0,
            clock_setback: SignedDuration::ZERO,
            last_sent_at: Timestamp::UNIX_EPOCH,
        }
    }

    /// Performs the steps of a round. After that, the client stays connected until the round is
    /// over.
    pub async fn run_round(
        &mut self,
        steps: Vec<Step>,
        gate: &FleetSendLimit,
        round_over: watch::Receiver<bool>,
    ) {
        {
            let mut history = self.history.lock();
            history.log.clear();
            history.expected.is_uncertain = false;
        }
        for Step {
            delay_before: delay,
            action,
        } in steps
        {
            let message_count = action.message_count();
            gate.start_messages(message_count).await;
            sleep(delay).await;
            self.perform(action).await;
            gate.finish_messages(message_count);
        }
        self.stay_connected(round_over).await;
    }

    async fn perform(&mut self, action: Action) {
        match action {
            Action::SendOnline { with_message_id } => {
                let online = self.new_online(with_message_id);
                self.send(vec![online]).await;
            }
            Action::SendOnlineBurst(count) => {
                let burst = (0..count).map(|_| self.new_online(true)).collect();
                self.send(burst).await;
            }
            Action::SetClockBack { hours } => {
                self.clock_setback = SignedDuration::from_hours(i64::try_from(hours).unwrap());
                // This value permits a next `sent` time that is before the `sent` times of earlier
                // messages.
                self.last_sent_at = Timestamp::UNIX_EPOCH;
                let online = self.new_online(true);
                self.send(vec![online]).await;
            }
            Action::Resend => {
                let latest = self.latest_online();
                let resent = dialect::resent_message(&self.profile, &latest);
                self.send_outdated_message(resent).await;
            }
            Action::SendStaleOnline { seconds } => self.send_stale_online(seconds).await,
            Action::SendInvalid { kind, variant } => {
                self.send(vec![dialect::invalid_message(&self.profile, kind, variant)])
                    .await;
            }
            Action::SendLargeResponse => {
                self.send(vec![dialect::large_response(&self.profile)])
                    .await;
            }
            Action::Takeover => {
                let first_connection = self.connection.take();
                let online = self.new_online(true);
                self.send(vec![online]).await;
                drop(first_connection);
            }
            Action::GoOffline => {
                let messages = dialect::offline_messages(&self.profile, Timestamp::now());
                self.send(messages).await;
                if let Some(connection) = self.connection.take() {
                    connection.disconnect().await;
                }
            }
            Action::DropConnection => self.drop_connection(),
        }
    }

    /// Closes the connection without DISCONNECT. After that, the client must be recorded as
    /// disconnected: the broker publishes the last will or, if the broker was killed, the startup
    /// sweep marks the client as disconnected.
    fn drop_connection(&mut self) {
        let mut history = self.history.lock();
        let entry = LogEntry::new(self.connection_attempts, "dropped the connection");
        history.log.push(entry);
        history.expected.set_offline();
        history.expected.add_connection_end();
        self.connection = None;
    }

    async fn send_stale_online(&mut self, seconds: u64) {
        let latest = self.latest_online();
        let (revision, message_id) = (self.next_revision(), self.new_message_id());
        let stale = dialect::stale_message(&self.profile, &latest, seconds, revision, message_id);
        self.send_outdated_message(stale).await;
    }

    /// Sends a stale or repeated online message. Usually the message has no effect. If the
    /// connection has closed since the latest online message, the broker may have published the
    /// last will, or the client has sent a newer online message first. The outdated message can then
    /// have an effect. In this case the client sends a new online message, so the expected state is
    /// unambiguous.
    async fn send_outdated_message(&mut self, message: Message) {
        self.history.lock().expected.is_uncertain = true;
        let connection_number_before = self.connection_attempts;
        self.send(vec![message]).await;
        if self.connection_attempts != connection_number_before
            || self.latest_online_connection_number != connection_number_before
        {
            let online = self.new_online(true);
            self.send(vec![online]).await;
        }
        self.history.lock().expected.is_uncertain = false;
    }

    /// Sends the messages in order. Resends unacknowledged messages until the broker has
    /// acknowledged all messages.
    async fn send(&mut self, messages: Vec<Message>) {
        let was_uncertain = std::mem::replace(&mut self.history.lock().expected.is_uncertain, true);
        let mut unacknowledged = VecDeque::from(messages);
        while !unacknowledged.is_empty() {
            if self.connection.is_none() {
                let connection = self.connect().await;
                self.connection = Some(connection);
                let is_connected = self.history.lock().expected.is_connected;
                let needs_online = is_connected && !self.profile.reconnects_with_heartbeat_only;
                if needs_online && !unacknowledged[0].is_presence_message() {
                    unacknowledged.push_front(self.online_with_latest_content());
                }
            }
            let connection = self
                .connection
                .as_mut()
                .expect("the connection was just opened");
            let connection_number = connection.connection_number;
            let acknowledged = connection.publish(unacknowledged.make_contiguous()).await;
            if acknowledged.contains(&false) {
                self.connection = None;
            }
            let mut remaining = VecDeque::new();
            for (message, is_acknowledged) in unacknowledged.into_iter().zip(acknowledged) {
                self.record_publish_result(connection_number, &message, is_acknowledged);
                if !is_acknowledged {
                    remaining.push_back(message);
                }
            }
            unacknowledged = remaining;
            if unacknowledged.is_empty() {
                let mut history = self.history.lock();
                history.expected.steps.push(PresenceStep::AllCommitted);
            }
        }
        self.history.lock().expected.is_uncertain = was_uncertain;
    }

    /// Logs the result of a publish. If the message is acknowledged, applies the effect of the
    /// message to the expected state.
    fn record_publish_result(
        &mut self,
        connection_number: u32,
        message: &Message,
        is_acknowledged: bool,
    ) {
        let event = if is_acknowledged {
            "published, acknowledged"
        } else {
            "published, NOT acknowledged"
        };
        let mut history = self.history.lock();
        let entry = LogEntry::with_message(connection_number, event, message);
        history.log.push(entry);
        // In distributed mode, a heartbeat of a later connection can be processed first. The client
        // then stays connected.
        let certain_offline =
            self.context.mode == DeploymentMode::Embedded || self.profile.uses_handshake;
        history
            .expected
            .add_message_step(&message.effect, is_acknowledged, certain_offline);
        if !is_acknowledged {
            return;
        }
        self.context
            .acknowledged_messages
            .fetch_add(1, Ordering::Relaxed);
        match &message.effect {
            Effect::Online(online) => {
                self.latest_online_connection_number = connection_number;
                history.expected.set_online(online.clone());
            }
            Effect::Offline => history.expected.set_offline(),
            Effect::DeadLetter => {
                let sha256 = format!("{:x}", Sha256::digest(&message.payload));
                let dead_letter = (message.topic.clone(), sha256);
                history.expected.dead_letters.insert(dead_letter);
            }
            Effect::OutdatedOnline { .. } | Effect::Heartbeat | Effect::None => {}
        }
    }

    async fn connect(&mut self) -> Connection {
        let history = self.history.clone();
        history.lock().expected.add_connection_end();
        let connection = Connection::open(
            &self.context.broker_address,
            &self.profile,
            &mut self.connection_attempts,
            &mut self.random,
            &mut |entry| history.lock().log.push(entry),
        )
        .await;
        if !self.profile.uses_handshake {
            let mut history = history.lock();
            history.expected.steps.push(PresenceStep::Heartbeat);
        }
        connection
    }

    /// Stays connected until the round is over, and reconnects if the connection closes.
    async fn stay_connected(&mut self, mut round_over: watch::Receiver<bool>) {
        let reconnect = async {
            loop {
                let is_connected = self.history.lock().expected.is_connected;
                if !is_connected {
                    return std::future::pending().await;
                }
                match &mut self.connection {
                    Some(connection) => {
                        connection.wait_for_close().await;
                        let mut history = self.history.lock();
                        let entry =
                            LogEntry::new(connection.connection_number, "the connection closed");
                        history.log.push(entry);
                        history.expected.is_uncertain = true;
                        drop(history);
                        self.connection = None;
                    }
                    None if self.profile.reconnects_with_heartbeat_only => {
                        let connection = self.connect().await;
                        self.connection = Some(connection);
                        self.history.lock().expected.is_uncertain = false;
                    }
                    None => {
                        self.history.lock().expected.is_uncertain = false;
                        let online = self.online_with_latest_content();
                        self.send(vec![online]).await;
                    }
                }
            }
        };
        tokio::select! {
            () = reconnect => {}
            _ = round_over.wait_for(|is_over| *is_over) => {}
        }
    }

    fn latest_online(&self) -> Online {
        let latest = self.history.lock().expected.latest_online.clone();
        latest.expect("the plan starts with an online message")
    }

    fn next_revision(&mut self) -> u64 {
        self.last_revision += 1;
        self.last_revision
    }

    fn new_message_id(&mut self) -> String {
        format!("{:016x}{:016x}", self.random.next(), self.random.next())
    }

    /// Creates an online message with new content.
    fn new_online(&mut self, with_message_id: bool) -> Message {
        let revision = self.next_revision();
        let message_id = with_message_id.then(|| self.new_message_id());
        self.online_message(revision, message_id)
    }

    /// Creates a new online message with the content of the latest online message.
    fn online_with_latest_content(&mut self) -> Message {
        let latest = self.latest_online();
        let message_id = self.new_message_id();
        self.online_message(latest.revision(), Some(message_id))
    }

    fn online_message(&mut self, revision: u64, message_id: Option<String>) -> Message {
        let now = Timestamp::from_microsecond(Timestamp::now().as_microsecond()).unwrap();
        let client_time = match self.profile.clock {
            ClockKind::Fast => now + SignedDuration::from_hours(1),
            ClockKind::Correct | ClockKind::Adjusted => now - self.clock_setback,
        };
        let next_microsecond = self.last_sent_at + SignedDuration::from_micros(1);
        self.last_sent_at = client_time.max(next_microsecond);
        let mut online =
            dialect::online_content(&self.profile, revision, message_id, self.last_sent_at);
        if self.profile.clock == ClockKind::Fast {
            online.earliest_receive_time = Some(now);
        }
        dialect::online_message(&self.profile, online)
    }
}
