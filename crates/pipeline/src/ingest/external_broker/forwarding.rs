//! Forwards the messages of one connection and acknowledges them.

use std::pin::pin;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesOrdered;
use futures::{FutureExt as _, StreamExt as _};
use tokio::sync::mpsc;

use super::IngestDeps;
use super::receive::ReceivedMessage;
use super::slow_clients::{MessageCounts, SlowKey};
use super::slow_forwarder::{PendingSlowMessage, Routed, SlowForwarder};
use crate::ingest::epoch::ConnectionEpoch;
use crate::ingest::forward::clears_retained_message;
use crate::ingest::in_flight::{InFlightGuard, Qos0Guard};
use broker::PendingWrite;
use kafka::DeliveredAt;
use mqtt::{Ack, MqttHandle};
use service::TaskGroup;

/// Maximum time that a shutdown waits until forwarded messages are stored. The broker redelivers
/// messages that are not acknowledged within this time.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

/// Forwards the messages of one connection.
pub(super) struct Forwarder<'a> {
    deps: &'a IngestDeps,
    handle: &'a MqttHandle,
    epoch: ConnectionEpoch,
    /// `None` if all messages go to the normal topics or to the recorder.
    slow_forwarder: Option<SlowForwarder>,
    /// The messages in flight, in the order in which they were received.
    in_flight: FuturesOrdered<BoxFuture<'static, ForwardedMessage>>,
    counts: MessageCounts,
}

/// A message whose write has ended.
struct ForwardedMessage {
    ack: Option<(Ack, InFlightGuard)>,
    outcome: ForwardOutcome,
}

enum ForwardOutcome {
    Stored,
    StoredInSlowTopic(SlowKey, DeliveredAt),
    NotStored,
}

/// A message that is being stored.
enum PendingForward {
    Normal(PendingWrite),
    Slow(SlowKey, PendingSlowMessage),
}

/// The connection is closed, or a message could not be stored. Contains the reason.
struct ConnectionEnd(&'static str);

impl<'a> Forwarder<'a> {
    pub fn new(
        deps: &'a IngestDeps,
        handle: &'a MqttHandle,
        epoch: ConnectionEpoch,
        slow_forwarder: Option<SlowForwarder>,
    ) -> Self {
        Self {
            deps,
            handle,
            epoch,
            slow_forwarder,
            in_flight: FuturesOrdered::new(),
            counts: MessageCounts::default(),
        }
    }

    /// Forwards messages concurrently and acknowledges them in the order in which they were received.
    /// Runs until the connection ends or `tasks` is cancelled, and returns the reason for the end.
    pub async fn run(
        mut self,
        mut messages: mpsc::Receiver<ReceivedMessage>,
        tasks: &TaskGroup,
    ) -> String {
        let token = tasks.cancellation_token();
        let mut cancelled = pin!(token.cancelled());
        loop {
            let result = tokio::select! {
                () = &mut cancelled => break,
                received_message = messages.recv() => {
                    let Some(received_message) = received_message else {
                        // The receiver has ended. `run_connection` returns its reason.
                        std::future::pending().await
                    };
                    tokio::select! {
                        () = self.forward(received_message) => Ok(()),
                        () = &mut cancelled => break,
                    }
                }
                Some(forwarded_message) = self.in_flight.next(), if !self.in_flight.is_empty() => {
                    tokio::select! {
                        result = self.on_forwarded(forwarded_message) => result,
                        () = &mut cancelled => break,
                    }
                }
                progress = next_check(&mut self.slow_forwarder) => {
                    if let Some(slow_forwarder) = &mut self.slow_forwarder {
                        slow_forwarder.on_checked(progress);
                    }
                    Ok(())
                }
            };
            if let Err(ConnectionEnd(reason)) = result {
                return reason.to_owned();
            }
        }
        let draining = self.drain_and_disconnect(messages);
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, draining).await;
        "shutting down".to_owned()
    }

    async fn forward(&mut self, received_message: ReceivedMessage) {
        let ReceivedMessage {
            mut message,
            topic,
            packet_id,
            mut ack,
            mut qos0_guard,
            is_over_budget,
        } = received_message;
        message.ingest_stamp = self.epoch.next_stamp();
        let is_needless = topic
            .as_ref()
            .is_some_and(|topic| clears_retained_message(topic.channel, &message));
        let pending_forward = if is_needless {
            PendingForward::Normal(PendingWrite::completed())
        } else {
            let routed = match &mut self.slow_forwarder {
                Some(slow_forwarder) => {
                    let counts = self.counts;
                    let topic = topic.as_ref();
                    slow_forwarder
                        .route(topic, message, packet_id, is_over_budget, counts)
                        .await
                }
                None => Routed::Normal(message),
            };
            match routed {
                Routed::Normal(message) => {
                    let destination = &self.deps.forward_destination;
                    PendingForward::Normal(destination.forward(topic, message, packet_id).await)
                }
                Routed::Slow(client, pending) => PendingForward::Slow(client, pending),
            }
        };
        self.counts.forwarded += 1;
        // The recorder has its own reservation.
        if self.deps.forward_destination.reserves_memory() {
            release_reservations(&mut ack, &mut qos0_guard);
        }
        let forwarded_message = async move {
            let outcome = pending_forward.wait().await;
            drop(qos0_guard);
            ForwardedMessage { ack, outcome }
        };
        self.in_flight.push_back(forwarded_message.boxed());
    }

    /// Acknowledges a stored message, and produces the messages that had to wait for it.
    async fn on_forwarded(&mut self, forwarded: ForwardedMessage) -> Result<(), ConnectionEnd> {
        match forwarded.outcome {
            ForwardOutcome::NotStored => return Err(ConnectionEnd("failed to forward a message")),
            ForwardOutcome::Stored => {}
            ForwardOutcome::StoredInSlowTopic(client, position) => {
                if let Some(slow_forwarder) = &mut self.slow_forwarder {
                    slow_forwarder.on_delivered(client, position);
                }
            }
        }
        self.counts.durable += 1;
        if acknowledge(self.handle, forwarded.ack).await.is_err() {
            return Err(ConnectionEnd("connection closed"));
        }
        if let Some(slow_forwarder) = &mut self.slow_forwarder {
            slow_forwarder
                .release_held_messages(self.counts.durable)
                .await;
        }
        Ok(())
    }

    /// Acknowledges the forwarded messages, then sends DISCONNECT and waits for the end of the
    /// connection. Received messages that were not forwarded are discarded without acknowledgement,
    /// so the broker redelivers these messages.
    async fn drain_and_disconnect(mut self, mut messages: mpsc::Receiver<ReceivedMessage>) {
        if let Some(slow_forwarder) = &mut self.slow_forwarder {
            slow_forwarder.discard_held_messages();
        }
        loop {
            tokio::select! {
                forwarded = self.in_flight.next() => match forwarded {
                    Some(ForwardedMessage { outcome: ForwardOutcome::NotStored, .. }) => return,
                    Some(ForwardedMessage { ack, .. }) => {
                        if acknowledge(self.handle, ack).await.is_err() {
                            return;
                        }
                    }
                    None => break,
                },
                message = messages.recv() => if message.is_none() { return },
            }
        }
        if self.handle.disconnect().await.is_ok() {
            while messages.recv().await.is_some() {}
        }
    }
}

impl PendingForward {
    async fn wait(self) -> ForwardOutcome {
        match self {
            Self::Normal(pending_write) => {
                if pending_write.wait_until_durable().await {
                    ForwardOutcome::Stored
                } else {
                    ForwardOutcome::NotStored
                }
            }
            Self::Slow(client, pending) => match pending.wait().await {
                Some(position) => ForwardOutcome::StoredInSlowTopic(client, position),
                None => ForwardOutcome::NotStored,
            },
        }
    }
}

/// Waits for the next progress in the slow topic. Waits forever without a slow topic.
async fn next_check(
    slow_forwarder: &mut Option<SlowForwarder>,
) -> Result<std::collections::BTreeMap<i32, kafka::PartitionProgress>, String> {
    match slow_forwarder {
        Some(slow_forwarder) => slow_forwarder.next_check().await,
        None => std::future::pending().await,
    }
}

/// Ends the reservations of a message in the message budget.
fn release_reservations(
    ack: &mut Option<(Ack, InFlightGuard)>,
    qos0_guard: &mut Option<Qos0Guard>,
) {
    if let Some((_, guard)) = ack {
        guard.release_reservation();
    }
    if let Some(guard) = qos0_guard {
        guard.release_reservation();
    }
}

async fn acknowledge(
    handle: &MqttHandle,
    ack: Option<(Ack, InFlightGuard)>,
) -> Result<(), mqtt::ConnectionClosed> {
    match ack {
        Some((ack, _in_flight_guard)) => handle.acknowledge(ack).await,
        None => Ok(()),
    }
}
