//! A connection that is kept up, for publishing: made again whenever it is lost.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::time::timeout;

use super::backoff::Backoff;
use super::client::{Happening, Publisher, connect};
use super::options::{Options, OptionsError};
use crate::shutdown::Stopper;

/// A broker that accepts a connection and says nothing is as good as gone after this.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Publishes while there is a connection. A clone is the same.
#[derive(Clone)]
pub struct KeptConnection {
    state: Arc<RwLock<State>>,
}

enum State {
    Up(Publisher),
    Down(String),
}

/// A message was not published, or not surely.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// There is no connection: it was not sent.
    #[error("no connection to the broker: {0}")]
    Down(String),
    /// The connection ended before the broker's answer: it may have it or not.
    #[error("the connection to the broker ended before its answer")]
    Lost,
    /// The broker did not answer in time: it may have it or not.
    #[error("the broker did not answer within {0:?}")]
    TimedOut(Duration),
}

impl KeptConnection {
    /// Connects, and connects again, until `stopper` asks.
    ///
    /// # Errors
    /// When the settings cannot work.
    pub fn start(options: Options, stopper: &Stopper) -> Result<Self, OptionsError> {
        // Tried once here, so that a wrong file is found at the start.
        drop(connect(&options)?);
        let state = Arc::new(RwLock::new(State::Down("not connected yet".to_owned())));
        stopper.spawn(keep(options, state.clone(), stopper.clone()));
        Ok(Self { state })
    }

    /// Publishes with QoS 1 and waits for the broker's acknowledgement, up to a bound.
    ///
    /// # Errors
    /// When there was none.
    pub async fn publish(
        &self,
        topic: String,
        payload: Vec<u8>,
        within: Duration,
    ) -> Result<(), PublishError> {
        let publisher = match &*self.state.read() {
            State::Up(publisher) => publisher.clone(),
            State::Down(why) => return Err(PublishError::Down(why.clone())),
        };
        match timeout(within, publisher.publish(topic, payload)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(PublishError::Lost),
            Err(_) => Err(PublishError::TimedOut(within)),
        }
    }

    /// Whether there is a connection.
    ///
    /// # Errors
    /// When there is none, with why.
    pub fn standing(&self) -> Result<(), String> {
        match &*self.state.read() {
            State::Up(_) => Ok(()),
            State::Down(why) => Err(format!("no connection to the broker: {why}")),
        }
    }
}

async fn keep(options: Options, state: Arc<RwLock<State>>, stopper: Stopper) {
    let mut backoff = Backoff::default();
    loop {
        let why = tokio::select! {
            why = one_connection(&options, &state, &mut backoff) => why,
            () = stopper.asked() => {
                let last = std::mem::replace(&mut *state.write(), State::Down("stopping".to_owned()));
                if let State::Up(publisher) = last {
                    let _ = publisher.disconnect().await;
                }
                return;
            }
        };
        tracing::warn!(why, "no connection to the broker; connecting again");
        *state.write() = State::Down(why);
        tokio::select! {
            () = tokio::time::sleep(backoff.pause()) => {}
            () = stopper.asked() => return,
        }
    }
}

/// Lives one connection through, and says why it ended.
async fn one_connection(options: &Options, state: &RwLock<State>, backoff: &mut Backoff) -> String {
    let (publisher, mut link) = match connect(options) {
        Ok(pair) => pair,
        Err(error) => return error.to_string(),
    };
    match timeout(CONNECT_WITHIN, link.next()).await {
        Ok(Happening::Connected { .. }) => {
            backoff.reset();
            tracing::info!("connected to the broker");
            *state.write() = State::Up(publisher);
        }
        Ok(Happening::Lost(why)) => return why,
        Ok(_) => return "the broker answered out of turn".to_owned(),
        Err(_) => return format!("no answer within {CONNECT_WITHIN:?}"),
    }
    loop {
        if let Happening::Lost(why) = link.next().await {
            return why;
        }
    }
}

/// Connects once, for `doctor`.
///
/// # Errors
/// When the broker does not let us in, with why.
pub async fn probe(options: &Options) -> Result<(), String> {
    let (publisher, mut link) = connect(options).map_err(|error| error.to_string())?;
    match timeout(CONNECT_WITHIN, link.next()).await {
        Ok(Happening::Connected { .. }) => {
            let _ = publisher.disconnect().await;
            let _ = timeout(CONNECT_WITHIN, link.next()).await;
            Ok(())
        }
        Ok(Happening::Lost(why)) => Err(why),
        Ok(_) => Err("the broker answered out of turn".to_owned()),
        Err(_) => Err(format!("no answer within {CONNECT_WITHIN:?}")),
    }
}
