//! A client that follows its script, whatever happens to its connection: what is not acknowledged it
//! says again, until it is.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::dialect::{self, Meaning, Message};
use crate::gate::Gate;
use crate::link::{Entry, Link, entry};
use crate::model::{Model, Word};
use crate::plan::{Action, Clock, Profile, Step};
use crate::random::Random;

/// What is known of a client from outside: read by the check while the client rests.
#[derive(Default)]
pub struct History {
    pub model: Model,
    pub log: Vec<Entry>,
}

/// What clients share.
pub struct World {
    /// Where the broker is.
    pub address: String,
    pub acknowledged: AtomicU64,
}

pub struct Client {
    pub manner: Profile,
    pub story: Arc<Mutex<History>>,
    world: Arc<World>,
    random: Random,
    link: Option<Link>,
    connections: u32,
    /// The connection that its last word was acknowledged on.
    word_on: u32,
    marks: u64,
    set_back: SignedDuration,
    last_sent: Timestamp,
}

impl Client {
    pub fn new(manner: Profile, world: Arc<World>, random: Random) -> Self {
        Self {
            manner,
            story: Arc::default(),
            world,
            random,
            link: None,
            connections: 0,
            word_on: 0,
            marks: 0,
            set_back: SignedDuration::ZERO,
            last_sent: Timestamp::UNIX_EPOCH,
        }
    }

    /// Goes through its script, then holds its connection until the round is over.
    pub async fn live(&mut self, script: Vec<Step>, gate: &Gate, over: watch::Receiver<bool>) {
        {
            let mut story = self.story.lock();
            story.log.clear();
            story.model.is_open = false;
        }
        for Step { wait, act } in script {
            let messages = act.messages();
            gate.enter(messages).await;
            sleep(wait).await;
            self.perform(act).await;
            gate.leave(messages);
        }
        self.rest(over).await;
    }

    async fn perform(&mut self, act: Action) {
        match act {
            Action::Online { with_id } => {
                let online = self.online(with_id);
                self.say(vec![online]).await;
            }
            Action::Burst(count) => {
                let burst = (0..count).map(|_| self.online(true)).collect();
                self.say(burst).await;
            }
            Action::ClockSet { back_hours } => {
                self.set_back = SignedDuration::from_hours(i64::try_from(back_hours).unwrap());
                // What it said before may be later than what it says now.
                self.last_sent = Timestamp::UNIX_EPOCH;
                let online = self.online(true);
                self.say(vec![online]).await;
            }
            Action::Again => {
                let word = self.word().expect("it has said what it is");
                self.say(vec![dialect::again(&self.manner, &word)]).await;
            }
            Action::Old { seconds } => self.say_something_old(seconds).await,
            Action::Garbage(kind, variant) => {
                self.say(vec![dialect::garbage(&self.manner, kind, variant)])
                    .await;
            }
            Action::Takeover => {
                let first = self.link.take();
                let online = self.online(true);
                self.say(vec![online]).await;
                drop(first);
            }
            Action::Leave => {
                let farewell = dialect::farewell(&self.manner, Timestamp::now());
                self.say(farewell).await;
                if let Some(link) = self.link.take() {
                    link.disconnect().await;
                }
            }
            Action::Truncated => self.cut(),
        }
    }

    /// Ends the connection without a word: the will speaks. If the broker died meanwhile, it was cut
    /// before, and whoever stays away is gone all the same.
    fn cut(&mut self) {
        let mut story = self.story.lock();
        let line = entry(self.connections, "cut".to_owned(), None);
        story.log.push(line);
        story.model.gone();
        self.link = None;
    }

    /// It has no effect while its last word stands. If the connection ended in between, its will may
    /// have spoken, and then it has one: the client settles that by another word.
    async fn say_something_old(&mut self, seconds: u64) {
        let last = self.word().expect("it has said what it is");
        let (mark, id) = (self.mark(), self.id());
        let old = dialect::old(&self.manner, &last, seconds, mark, id);
        self.story.lock().model.is_open = true;
        let before = self.connections;
        self.say(vec![old]).await;
        if self.connections != before || self.word_on != before {
            let online = self.online(true);
            self.say(vec![online]).await;
        }
        self.story.lock().model.is_open = false;
    }

    /// Says it all, in order, until all of it is acknowledged.
    async fn say(&mut self, messages: Vec<Message>) {
        let was_open = std::mem::replace(&mut self.story.lock().model.is_open, true);
        let mut waiting = VecDeque::from(messages);
        while !waiting.is_empty() {
            if self.link.is_none() {
                let link = self.connect().await;
                self.link = Some(link);
                let has_to_tell = self.story.lock().model.is_here && !self.manner.quiet;
                if has_to_tell && !waiting[0].is_presence() {
                    waiting.push_front(self.same_again());
                }
            }
            let link = self.link.as_mut().expect("it was just made");
            let number = link.number;
            let acknowledged = link.publish(waiting.make_contiguous()).await;
            if acknowledged.contains(&false) {
                self.link = None;
            }
            let mut unheard = VecDeque::new();
            for (message, is_heard) in waiting.into_iter().zip(acknowledged) {
                self.note(number, &message, is_heard);
                if !is_heard {
                    unheard.push_back(message);
                }
            }
            waiting = unheard;
        }
        self.story.lock().model.is_open = was_open;
    }

    fn note(&mut self, number: u32, message: &Message, is_heard: bool) {
        let what = if is_heard {
            "said, acknowledged"
        } else {
            "said, NOT acknowledged"
        };
        let mut story = self.story.lock();
        let line = entry(number, what.to_owned(), Some(message));
        story.log.push(line);
        if !is_heard {
            return;
        }
        self.world.acknowledged.fetch_add(1, Ordering::Relaxed);
        match &message.means {
            Meaning::Online(word) => {
                self.word_on = number;
                story.model.online(word.clone());
            }
            Meaning::Offline => story.model.gone(),
            Meaning::Garbage => {
                let hash = format!("{:x}", Sha256::digest(&message.bytes));
                story.model.letters.insert((message.topic.clone(), hash));
            }
            Meaning::Nothing => {}
        }
    }

    async fn connect(&mut self) -> Link {
        let story = self.story.clone();
        Link::make(
            &self.world.address,
            &self.manner,
            &mut self.connections,
            &mut self.random,
            &mut |entry| story.lock().log.push(entry),
        )
        .await
    }

    /// Holds its connection, and comes back if it is cut.
    async fn rest(&mut self, mut over: watch::Receiver<bool>) {
        let work = async {
            loop {
                let is_here = self.story.lock().model.is_here;
                if !is_here {
                    return std::future::pending().await;
                }
                match &mut self.link {
                    Some(link) => {
                        link.ended().await;
                        let what = "the connection has ended".to_owned();
                        let mut story = self.story.lock();
                        story.log.push(entry(link.number, what, None));
                        // Until it is back, nobody can say what the table holds.
                        story.model.is_open = true;
                        drop(story);
                        self.link = None;
                    }
                    None if self.manner.quiet => {
                        let link = self.connect().await;
                        self.link = Some(link);
                        self.story.lock().model.is_open = false;
                    }
                    None => {
                        self.story.lock().model.is_open = false;
                        let online = self.same_again();
                        self.say(vec![online]).await;
                    }
                }
            }
        };
        tokio::select! {
            () = work => {}
            _ = over.wait_for(|over| *over) => {}
        }
    }

    // --- what it says ----------------------------------------------------------------------------

    fn word(&self) -> Option<Word> {
        self.story.lock().model.word.clone()
    }

    fn mark(&mut self) -> u64 {
        self.marks += 1;
        self.marks
    }

    fn id(&mut self) -> String {
        format!("{:016x}{:016x}", self.random.next(), self.random.next())
    }

    /// A new description of itself.
    fn online(&mut self, with_id: bool) -> Message {
        let mark = self.mark();
        let id = with_id.then(|| self.id());
        self.tell(mark, id)
    }

    /// The description that it gave last, said anew.
    fn same_again(&mut self) -> Message {
        let word = self.word().expect("it has said what it is");
        let mark = word.facts["mark"].as_u64().expect("every word has one");
        let id = self.id();
        self.tell(mark, Some(id))
    }

    fn tell(&mut self, mark: u64, id: Option<String>) -> Message {
        let now = Timestamp::from_microsecond(Timestamp::now().as_microsecond()).unwrap();
        let by_its_clock = match self.manner.clock {
            Clock::Fast => now + SignedDuration::from_hours(1),
            Clock::Right | Clock::Set => now - self.set_back,
        };
        let next = self.last_sent + SignedDuration::from_micros(1);
        self.last_sent = by_its_clock.max(next);
        let mut word = dialect::word(&self.manner, mark, id, self.last_sent);
        if self.manner.clock == Clock::Fast {
            word.received_after = Some(now);
        }
        dialect::online(&self.manner, word)
    }
}
