//! From an outside broker. Its session is kept while we are away, and each message is acknowledged
//! when the next stage has it: this process may die at any instruction.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::FuturesOrdered;
use futures::{Stream, StreamExt as _};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

use super::NextStage;
use super::in_flight::{InFlight, InFlightGuard, Qos0Budget, Qos0Guard};
use crate::domain::{Clock, Timestamp};
use crate::mqtt::{self, Ack, Backoff, EventLoop, MqttEvent, MqttHandle, Options, OptionsError};
use crate::protocol::{InboundMessage, TopicScheme};
use crate::shutdown::TaskGroup;
use crate::telemetry::health::HealthResult;
use crate::telemetry::metrics;

/// More than may be unacknowledged: whoever polls never waits for whoever forwards.
const WINDOW: usize = 70_000;
/// How long the end waits for what was handed on already: if the next stage is away, the broker sends
/// it again, and nothing is lost.
const LEAVE_WITHIN: Duration = Duration::from_secs(3);

/// What ingest works with.
pub struct IngestDeps {
    /// Whom to connect to, as whom.
    pub options: Options,
    /// The deployment's topics.
    pub topics: TopicScheme,
    /// The name of a shared subscription, if the work is shared.
    pub shared_subscription_group: Option<String>,
    /// Where messages go.
    pub destination: NextStage,
    /// Now.
    pub clock: Arc<dyn Clock>,
    /// When the last message was received.
    pub last: Mutex<Timestamp>,
}

/// Says how ingest stands. A clone is the same.
#[derive(Clone)]
pub struct ExternalIngest {
    state: Arc<RwLock<HealthResult>>,
}

struct Message {
    received: InboundMessage,
    packet_id: u16,
    /// With QoS 1; what it takes of what may be unacknowledged.
    ack: Option<(Ack, InFlightGuard)>,
    /// With QoS 0; what it takes of what may be here.
    unkept: Option<Qos0Guard>,
}

impl ExternalIngest {
    /// Starts to take messages in, until `stopper` asks.
    ///
    /// # Errors
    /// When the settings cannot work.
    pub fn start(parts: IngestDeps, stopper: &TaskGroup) -> Result<Self, OptionsError> {
        // Tried once here, so that a wrong file is found at the start.
        drop(mqtt::connect(&parts.options)?);
        let state = Arc::new(RwLock::new(Err("not connected yet".to_owned())));
        let running = keep_connected(Arc::new(parts), state.clone(), stopper.clone());
        stopper.spawn(running);
        Ok(Self { state })
    }

    /// Whether messages are coming in.
    ///
    /// # Errors
    /// When not, with why.
    pub fn standing(&self) -> HealthResult {
        self.state.read().clone()
    }
}

async fn keep_connected(
    parts: Arc<IngestDeps>,
    state: Arc<RwLock<HealthResult>>,
    stopper: TaskGroup,
) {
    let mut backoff = Backoff::default();
    // A session may be of an earlier process with other prefixes: the first connection subscribes
    // whatever the broker kept.
    let mut has_subscribed = false;
    loop {
        let connection =
            one_connection(&parts, &state, &mut has_subscribed, &mut backoff, &stopper);
        let why = connection.await;
        if stopper.is_asked() {
            *state.write() = Err("stopping".to_owned());
            return;
        }
        tracing::warn!(why, "no messages from the broker; connecting again");
        *state.write() = Err(why);
        tokio::select! {
            () = tokio::time::sleep(backoff.pause()) => {}
            () = stopper.asked() => return,
        }
    }
}

/// Lives one connection through, and says why it ended. What was in flight on it is acknowledged to
/// nobody: the broker sends it again, and doing it twice ends in the same.
async fn one_connection(
    parts: &Arc<IngestDeps>,
    state: &Arc<RwLock<HealthResult>>,
    has_subscribed: &mut bool,
    backoff: &mut Backoff,
    stopper: &TaskGroup,
) -> String {
    let (publisher, mut link) = match mqtt::connect(&parts.options) {
        Ok(pair) => pair,
        Err(error) => return error.to_string(),
    };
    let first = tokio::select! {
        first = link.next() => first,
        () = stopper.asked() => return "stopping".to_owned(),
    };
    let awaited = match first {
        MqttEvent::Connected { session_present } if session_present && *has_subscribed => 0,
        MqttEvent::Connected { .. } => match subscribe(parts, &publisher).await {
            Ok(asked) => asked,
            Err(error) => return error.to_string(),
        },
        MqttEvent::Lost(why) => return why,
        _ => return "the broker answered out of turn".to_owned(),
    };
    backoff.reset();
    let (sender, messages) = mpsc::channel(WINDOW);
    let (granted, subscribed) = oneshot::channel();
    let polling = poll(link, parts.clone(), sender, awaited, granted);
    let polling = AbortOnDropHandle::new(tokio::spawn(polling));
    let told = async {
        if subscribed.await.is_ok() {
            *has_subscribed = true;
            *state.write() = Ok(());
            tracing::info!("taking messages from the broker");
        }
        std::future::pending::<String>().await
    };
    tokio::select! {
        why = polling => why.unwrap_or_else(|error| error.to_string()),
        why = forward(parts, &publisher, messages, stopper) => why,
        why = told => why,
    }
}

/// Asks for every topic, and returns how many answers will come. They are not waited for here: what
/// the broker had kept for us comes before them.
async fn subscribe(
    parts: &IngestDeps,
    publisher: &MqttHandle,
) -> Result<usize, mqtt::ConnectionClosed> {
    let filters = parts.topics.filters();
    let asked = filters.len();
    for filter in filters {
        let filter = match &parts.shared_subscription_group {
            Some(group) => format!("$share/{group}/{filter}"),
            None => filter,
        };
        publisher.subscribe(filter).await?;
    }
    Ok(asked)
}

/// Takes in what comes, and tells when the last of the awaited subscriptions is granted.
async fn poll(
    mut link: EventLoop,
    parts: Arc<IngestDeps>,
    sender: mpsc::Sender<Message>,
    mut awaited: usize,
    granted: oneshot::Sender<()>,
) -> String {
    let mut granted = Some(granted);
    let (unacknowledged, unkept) = (InFlight::default(), Qos0Budget::default());
    loop {
        if awaited == 0
            && let Some(granted) = granted.take()
        {
            // Nobody listens any more if the connection is being given up.
            let _ = granted.send(());
        }
        // While there is none, nothing is read, and nothing is said either: if the next stage is away
        // for longer than the broker waits for a word, it hangs up, and sends it all again.
        unacknowledged.room().await;
        match link.next().await {
            MqttEvent::Message {
                topic,
                payload,
                retain,
                packet_id,
                ack,
            } => {
                let ack = ack.map(|ack| (ack, unacknowledged.take(payload.len())));
                let unkept = if ack.is_none() {
                    let share = unkept.take(payload.len());
                    if share.is_none() {
                        metrics::overflowed();
                        continue;
                    }
                    share
                } else {
                    None
                };
                let last = parts.stamp();
                let received = InboundMessage {
                    topic,
                    payload,
                    replayed: retain,
                    again: false,
                    received: last,
                    cut: None,
                };
                let message = Message {
                    received,
                    packet_id,
                    ack,
                    unkept,
                };
                if sender.send(message).await.is_err() {
                    return "stopping".to_owned();
                }
            }
            MqttEvent::Subscribed(true) => awaited = awaited.saturating_sub(1),
            MqttEvent::Subscribed(false) => {
                return "the broker refused a subscription; check its access rules".to_owned();
            }
            MqttEvent::Lost(why) => return why,
            MqttEvent::Connected { .. } => {}
        }
    }
}

impl IngestDeps {
    /// Now, but never at or before the last one: these times say which message was first, also where
    /// the clock is set back or messages come faster than it counts.
    fn stamp(&self) -> Timestamp {
        let mut last = self.last.lock();
        let now = self.clock.now();
        let next = last.saturating_add(Duration::from_micros(1));
        *last = next.map_or(now, |next| next.max(now));
        *last
    }
}

/// Hands messages on, many at once, and acknowledges them in the order in which they came, until the
/// connection ends or `stopper` asks.
async fn forward(
    parts: &IngestDeps,
    publisher: &MqttHandle,
    mut messages: mpsc::Receiver<Message>,
    stopper: &TaskGroup,
) -> String {
    let mut under_way = FuturesOrdered::new();
    let ended = || "the connection has ended".to_owned();
    let stop = stopper.token();
    let mut asked = pin!(stop.cancelled());
    loop {
        tokio::select! {
            () = &mut asked => {
                let leaving = leave(publisher, messages, under_way);
                let _ = tokio::time::timeout(LEAVE_WITHIN, leaving).await;
                return "stopping".to_owned();
            }
            message = messages.recv() => {
                let Some(message) = message else { return ended() };
                let taking = parts
                    .destination
                    .take(&parts.topics, message.received, message.packet_id);
                let taken = tokio::select! {
                    taken = taking => taken,
                    () = &mut asked => continue,
                };
                under_way.push_back(async move {
                    let durable = taken.durable().await;
                    drop(message.unkept);
                    (durable, message.ack)
                });
            }
            Some((durable, ack)) = under_way.next(), if !under_way.is_empty() => {
                if !durable {
                    return "the next stage does not take messages".to_owned();
                }
                if acknowledge(publisher, ack).await.is_err() {
                    return ended();
                }
            }
        }
    }
}

async fn acknowledge(
    publisher: &MqttHandle,
    ack: Option<(Ack, InFlightGuard)>,
) -> Result<(), mqtt::ConnectionClosed> {
    match ack {
        Some((ack, _share)) => publisher.acknowledge(ack).await,
        None => Ok(()),
    }
}

/// Acknowledges what was handed on, and tells the broker that we go. What still comes is not taken:
/// the broker keeps it. Returns when the connection has ended.
async fn leave(
    publisher: &MqttHandle,
    mut messages: mpsc::Receiver<Message>,
    mut under_way: impl Stream<Item = (bool, Option<(Ack, InFlightGuard)>)> + Unpin,
) {
    loop {
        tokio::select! {
            outcome = under_way.next() => match outcome {
                Some((true, ack)) => if acknowledge(publisher, ack).await.is_err() { return },
                Some((false, _)) => return,
                None => break,
            },
            message = messages.recv() => if message.is_none() { return },
        }
    }
    if publisher.disconnect().await.is_ok() {
        while messages.recv().await.is_some() {}
    }
}
