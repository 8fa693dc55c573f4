//! One client's life: it connects, stays, is told to leave, comes back.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::args::Misbehavior;
use super::dialect::{Dialect, Reaction};
use super::fleet::Fleet;
use super::session::Session;
use crate::domain::{ClientId, ClientInfo, Clock as _, SystemClock};
use crate::mqtt::{self, Backoff, EventLoop, MqttEvent, Options};

/// In a storm nobody backs off; but whoever was not let in leaves the processor to others.
const STORM_PAUSE: Duration = Duration::from_millis(50);
/// Up to this long a connection holds in a storm, so that some are dropped in the middle of
/// something.
const STORM_HOLDS_MILLIS: u64 = 100;

pub(super) struct Client {
    pub id: ClientId,
    pub voice: Dialect,
    pub reported: ClientInfo,
    pub fleet: Arc<Fleet>,
    /// Whether an online was ever acknowledged.
    pub told: AtomicBool,
    /// Delivery often it has said that it is there.
    pub said: AtomicU64,
    /// Who speaks for it now, if it has arrived.
    pub seat: Mutex<Option<Arc<Session>>>,
    number: u32,
    options: Options,
}

/// Delivery a connection ended.
enum End {
    /// It was not had, or lost before it was.
    NotLetIn,
    Lost,
    /// By a storm.
    Truncated,
    /// The service wants it away, for so long or for good.
    Away(Option<Duration>),
    /// The process ends.
    Stopped,
}

impl Client {
    pub fn new(
        id: ClientId,
        number: u32,
        voice: Dialect,
        options: Options,
        reported: ClientInfo,
        fleet: Arc<Fleet>,
    ) -> Self {
        Self {
            id,
            voice,
            reported,
            fleet,
            told: AtomicBool::new(false),
            said: AtomicU64::new(0),
            seat: Mutex::new(None),
            number,
            options,
        }
    }

    /// Connects, and connects again when the connection is lost, until it is asked to stop or sent
    /// away for good.
    pub async fn live(self: Arc<Self>) {
        let stopper = &self.fleet.stopper;
        let mut backoff = Backoff::default();
        for round in 0.. {
            if stopper.is_asked() {
                return;
            }
            let end = self.one_connection(round).await;
            if !matches!(end, End::NotLetIn) {
                backoff.reset();
            }
            let Some(pause) = self.pause(&end, &mut backoff) else {
                return;
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stopper.asked() => return,
            }
        }
    }

    /// Delivery long to stay away; none for good.
    fn pause(&self, end: &End, backoff: &mut Backoff) -> Option<Duration> {
        match end {
            End::Stopped | End::Away(None) => None,
            End::Away(Some(_)) if self.fleet.manners.has(Misbehavior::IgnoreDelay) => {
                Some(Duration::ZERO)
            }
            End::Away(Some(delay)) => Some(*delay),
            End::Truncated => Some(Duration::ZERO),
            End::Lost | End::NotLetIn if self.fleet.is_storm() => Some(STORM_PAUSE),
            End::Lost | End::NotLetIn => Some(backoff.pause()),
        }
    }

    async fn one_connection(self: &Arc<Self>, round: u64) -> End {
        let (fleet, began) = (&self.fleet, Instant::now());
        let (publisher, mut link) = match mqtt::connect(&self.options) {
            Ok(connection) => connection,
            Err(error) => return self.not_let_in(&error.to_string()),
        };
        tokio::select! {
            happening = link.next() => match happening {
                MqttEvent::Connected { .. } => {}
                MqttEvent::Lost(why) => return self.not_let_in(&why),
                _ => return self.not_let_in("the broker answered out of turn"),
            },
            () = fleet.stopper.asked() => return End::Stopped,
        }
        fleet.tally.let_in(began.elapsed());
        let speaker = Arc::new(Session::new(self.clone(), publisher));
        fleet.stopper.spawn(speaker.clone().arrive());
        let end = self.stay(&speaker, &mut link, round).await;
        *self.seat.lock() = None;
        fleet.tally.ended();
        end
    }

    fn not_let_in(&self, why: &str) -> End {
        self.fleet.tally.not_let_in(why);
        self.fleet.event(&self.id, &format!("not let in: {why}"));
        End::NotLetIn
    }

    /// Hears what happens until the connection ends.
    async fn stay(&self, speaker: &Arc<Session>, link: &mut EventLoop, round: u64) -> End {
        let fleet = &self.fleet;
        let mut storm_hit = pin!(fleet.storm_hit(self.holds(round)));
        let mut leaving = None;
        loop {
            let happening = tokio::select! {
                happening = link.next() => happening,
                () = fleet.stopper.asked(), if leaving.is_none() => {
                    leaving = Some(End::Stopped);
                    fleet.stopper.spawn(speaker.clone().say_farewell());
                    continue;
                }
                () = &mut storm_hit, if leaving.is_none() => {
                    fleet.tally.cut();
                    return End::Truncated;
                }
            };
            match happening {
                MqttEvent::Lost(why) => return leaving.unwrap_or_else(|| self.lost(&why)),
                MqttEvent::Connected { .. } | MqttEvent::Subscribed(true) => {}
                MqttEvent::Subscribed(false) => {
                    fleet.tally.subscription_refused();
                    fleet.event(&self.id, "the broker refused a subscription");
                }
                MqttEvent::Message { topic, payload, .. } => {
                    let end = self.hear(speaker, &topic, &payload);
                    if let Some(end) = end.filter(|_| leaving.is_none()) {
                        leaving = Some(end);
                        fleet.stopper.spawn(speaker.clone().part());
                    }
                }
            }
        }
    }

    /// Different for each and each time, and yet the same in every run.
    fn holds(&self, round: u64) -> Duration {
        let spread = u64::from(self.number) * 37 + round * 61;
        Duration::from_millis(spread % STORM_HOLDS_MILLIS)
    }

    fn lost(&self, why: &str) -> End {
        self.fleet.tally.lost(why);
        let event = format!("lost the broker: {why}");
        self.fleet.event(&self.id, &event);
        End::Lost
    }

    /// Reacts to a message. Some if it makes the client leave.
    fn hear(&self, speaker: &Arc<Session>, topic: &str, payload: &[u8]) -> Option<End> {
        let fleet = &self.fleet;
        fleet.tally.received();
        if fleet.tells_events {
            let text = String::from_utf8_lossy(payload);
            fleet.event(&self.id, &format!("received on {topic}: {text}"));
        }
        match self.voice.hear(payload, SystemClock.now()) {
            Reaction::Answer(answer) => {
                fleet.stopper.spawn(speaker.clone().answer(answer));
                None
            }
            Reaction::Leave(away) => {
                fleet.event(&self.id, &told_to_leave(away));
                Some(End::Away(away))
            }
            Reaction::Refused(later) => {
                fleet.tally.handshake_refused();
                fleet.event(&self.id, "the service refused the handshake");
                // Whoever sends garbage means it, and is none the wiser for being told.
                let means_it = fleet.manners.has(Misbehavior::Garbage);
                (!means_it).then_some(End::Away(Some(later)))
            }
            Reaction::Nothing => None,
        }
    }

    /// Counts the times that it says that it is there, from 0.
    pub fn next_time(&self) -> u64 {
        self.said.fetch_add(1, Ordering::Relaxed)
    }
}

fn told_to_leave(away: Option<Duration>) -> String {
    match away {
        Some(delay) => format!("told to leave for {} s", delay.as_secs()),
        None => "told to leave for good".to_owned(),
    }
}
