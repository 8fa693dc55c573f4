//! Receives the messages of one connection, and applies the budgets of the clients.
//!
//! The budget of a client is charged before its message is parsed. QoS 1 messages over the budget are
//! received and marked. QoS 0 messages over the budget are dropped, except the latest heartbeat
//! (`qos0_filter`).

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::IngestDeps;
use super::deferred_heartbeats::DeferredHeartbeat;
use super::qos0_filter::Qos0Filter;
use crate::ingest::forward::{message_key, parse_topic_from_client};
use crate::ingest::in_flight::{InFlightCounter, InFlightGuard, Qos0Budget, Qos0Guard};
use crate::ingest::metrics::DropReason;
use mqtt::{Ack, EventLoop, MqttEvent};
use protocol::{ClientTopic, InboundMessage};

/// A received message that is not forwarded yet.
pub(super) struct ReceivedMessage {
    pub message: InboundMessage,
    /// The parsed topic. `None` if clients do not publish on this topic.
    pub topic: Option<ClientTopic>,
    pub packet_id: u16,
    /// The acknowledgement to send after the message is stored. `None` for QoS 0.
    pub ack: Option<(Ack, InFlightGuard)>,
    /// Reserves memory for a QoS 0 message. `None` for QoS 1.
    pub qos0_guard: Option<Qos0Guard>,
    /// Whether the budget of the client did not cover the message.
    pub is_over_budget: bool,
}

/// Receives the messages of one connection.
pub(super) struct Receiver {
    deps: Arc<IngestDeps>,
    sender: mpsc::Sender<ReceivedMessage>,
    in_flight: InFlightCounter,
    qos0_budget: Qos0Budget,
    qos0_filter: Arc<Qos0Filter>,
}

/// The receiver of the messages was dropped, because the connection ends.
struct Closed;

impl Receiver {
    /// Creates a receiver that sends each message to `sender`.
    pub fn new(deps: Arc<IngestDeps>, sender: mpsc::Sender<ReceivedMessage>) -> Self {
        Self {
            in_flight: InFlightCounter::new(deps.message_budget.clone()),
            qos0_budget: Qos0Budget::new(deps.message_budget.clone()),
            qos0_filter: Arc::new(Qos0Filter::new(deps.clone())),
            deps,
            sender,
        }
    }

    /// Polls the connection and completes `subscribed_sender` after the last pending SUBACK. Returns
    /// the reason for the end of the connection.
    pub async fn poll_connection(
        mut self,
        mut event_loop: EventLoop,
        mut pending_subacks: usize,
        subscribed_sender: oneshot::Sender<()>,
    ) -> String {
        let mut subscribed_sender = Some(subscribed_sender);
        loop {
            if pending_subacks == 0
                && let Some(subscribed_sender) = subscribed_sender.take()
            {
                // `send` fails only if the connection is being closed. That is not an error.
                let _ = subscribed_sender.send(());
            }
            // While the loop waits for capacity, it sends no PINGREQ. If Kafka or the database is down
            // for longer than the keep-alive timeout, the broker closes the connection. After the
            // reconnect, the broker redelivers the messages.
            self.in_flight.wait_for_capacity().await;
            let result = match self.next_event(&mut event_loop).await {
                Ok(MqttEvent::Message {
                    topic,
                    payload,
                    retain,
                    packet_id,
                    ack,
                }) => {
                    self.on_message(topic, payload, retain, packet_id, ack)
                        .await
                }
                Ok(MqttEvent::SubAck { is_granted: true }) => {
                    pending_subacks = pending_subacks.saturating_sub(1);
                    Ok(())
                }
                Ok(MqttEvent::SubAck { is_granted: false }) => {
                    return "the broker rejected a subscription; check its access rules".to_owned();
                }
                Ok(MqttEvent::Disconnected(reason)) => return reason,
                Ok(MqttEvent::Connected { .. }) => Ok(()),
                Err(Closed) => Err(Closed),
            };
            if result.is_err() {
                return "shutting down".to_owned();
            }
        }
    }

    /// Waits for the next event, and forwards the heartbeats whose window ends meanwhile.
    async fn next_event(&mut self, event_loop: &mut EventLoop) -> Result<MqttEvent, Closed> {
        let filter = self.qos0_filter.clone();
        let is_dropped = |topic: &str, payload: &[u8]| filter.is_dropped(topic, payload);
        let mut next_event = pin!(event_loop.next_unless(is_dropped));
        loop {
            let window_end = filter.deferred_heartbeats.lock().next_window_end();
            tokio::select! {
                event = &mut next_event => return Ok(event),
                () = sleep_until(window_end.unwrap_or_else(Instant::now)), if window_end.is_some() => {
                    self.send_due_heartbeats().await?;
                }
            }
        }
    }

    async fn send_due_heartbeats(&self) -> Result<(), Closed> {
        loop {
            let heartbeat = self.qos0_filter.deferred_heartbeats.lock().take_due();
            match heartbeat {
                Some(heartbeat) => self.send_heartbeat(heartbeat).await?,
                None => return Ok(()),
            }
        }
    }

    async fn on_message(
        &mut self,
        topic: String,
        payload: Bytes,
        retain: bool,
        packet_id: u16,
        ack: Option<Ack>,
    ) -> Result<(), Closed> {
        let client_topic = parse_topic_from_client(&self.deps.topics, &topic);
        let channel = client_topic.as_ref().map(|topic| topic.channel);
        self.qos0_filter.counters.count_received(channel);
        let message = InboundMessage {
            topic,
            payload,
            retained: retain,
            is_operator_replay: false,
            is_last_will: None,
            is_takeover: false,
            received_at: self.deps.next_receive_time(),
            ingest_stamp: None,
            truncated_from: None,
        };
        let size_bytes = message.payload.len();
        let is_over_budget = if ack.is_some() {
            let key = message_key(client_topic.as_ref(), &message);
            !self.deps.client_budgets.try_charge(key, size_bytes)
        } else {
            self.qos0_filter.take_is_over_budget()
        };
        let mut qos0_guard = None;
        if ack.is_none() {
            if !is_over_budget {
                qos0_guard = self.qos0_budget.try_reserve(size_bytes);
            }
            if qos0_guard.is_none() {
                let reason = if is_over_budget {
                    DropReason::OverBudget
                } else {
                    DropReason::BufferFull
                };
                self.qos0_filter
                    .drop_or_defer(client_topic, message, reason);
                return Ok(());
            }
        }
        if let Some(topic) = &client_topic {
            // The heartbeat was received before this message, so it is forwarded first.
            let client = topic.client.as_str();
            let heartbeat = self.qos0_filter.deferred_heartbeats.lock().take(client);
            if let Some(heartbeat) = heartbeat {
                self.send_heartbeat(heartbeat).await?;
            }
        }
        let ack = ack.map(|ack| (ack, self.in_flight.add_message(message.payload.len())));
        self.send(ReceivedMessage {
            message,
            topic: client_topic,
            packet_id,
            ack,
            qos0_guard,
            is_over_budget,
        })
        .await
    }

    /// Sends a deferred heartbeat. If the memory for QoS 0 messages is used up, the heartbeat is sent
    /// without a reservation: it is small, and a client has at most one.
    async fn send_heartbeat(&self, heartbeat: DeferredHeartbeat) -> Result<(), Closed> {
        self.send(ReceivedMessage {
            message: heartbeat.message,
            topic: Some(heartbeat.topic),
            packet_id: 0,
            ack: None,
            qos0_guard: self.qos0_budget.try_reserve(0),
            is_over_budget: false,
        })
        .await
    }

    async fn send(&self, message: ReceivedMessage) -> Result<(), Closed> {
        self.sender.send(message).await.map_err(|_| Closed)
    }
}
