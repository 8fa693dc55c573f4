//! One client's way to the broker: a connection that may end at any moment, and a log of all that
//! went over it.

use std::time::Duration;

use jiff::Timestamp;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::dialect::{self, Message};
use crate::plan::Profile;
use crate::random::Random;
use crate::support::mqtt::{Connect, RawClient, data_out};

/// A broker that says nothing for this long is given up, and connected to again. Longer than any
/// pause of the plan, and shorter than what the raw client takes for a broken test.
const SILENCE: Duration = Duration::from_secs(40);

/// Something that happened to a client, for whoever has to find out why.
#[derive(Debug, Clone)]
pub struct Entry {
    pub at: Timestamp,
    pub connection: u32,
    pub what: String,
    pub message: Option<Message>,
}

/// A connection with its number.
pub struct Link {
    client: RawClient,
    pub number: u32,
}

impl Link {
    /// Connects, however often it takes.
    pub async fn make(
        address: &str,
        manner: &Profile,
        numbers: &mut u32,
        random: &mut Random,
        log: &mut impl FnMut(Entry),
    ) -> Self {
        let connect = dialect::connect(manner);
        let mut pause = random.between(20, 300);
        loop {
            *numbers += 1;
            let mut note = |what: String| log(entry(*numbers, what, None));
            match timeout(SILENCE, dial(address, &connect)).await {
                Ok(Ok(mut client)) => {
                    note("connected".to_owned());
                    if !manner.handshake {
                        client.show_life(&data_out(&manner.name)).await;
                    }
                    return Self {
                        client,
                        number: *numbers,
                    };
                }
                Ok(Err(why)) => note(format!("not connected: {why}")),
                Err(_) => note("not connected: the broker says nothing".to_owned()),
            }
            sleep(Duration::from_millis(pause)).await;
            pause = (pause * 2).min(random.between(400, 1000));
        }
    }

    /// Publishes all of them without waiting, then waits for the answers. Returns which were
    /// acknowledged; fewer than all if the connection ended.
    pub async fn publish(&mut self, messages: &[Message]) -> Vec<bool> {
        let mut acknowledged = vec![false; messages.len()];
        let answered = async {
            let mut ids = Vec::new();
            for message in messages {
                let (topic, bytes) = (&message.topic, &message.bytes);
                let id = self.client.publish_only(topic, bytes, message.retain).await;
                ids.push(id.to_be_bytes());
            }
            while acknowledged.contains(&false) {
                let Some(answer) = self.client.read().await else {
                    return;
                };
                let of = |id: &[u8; 2]| answer.kind() == 4 && answer.body[..2] == *id;
                if let Some(place) = ids.iter().position(of) {
                    acknowledged[place] = true;
                }
            }
        };
        let _ = timeout(SILENCE, answered).await;
        acknowledged
    }

    /// Returns when the connection has ended.
    pub async fn ended(&mut self) {
        loop {
            // Nothing is sent to these clients, so nothing is lost by asking anew.
            if let Ok(None) = timeout(SILENCE, self.client.read()).await {
                return;
            }
        }
    }

    pub async fn disconnect(self) {
        let _ = timeout(SILENCE, self.client.disconnect()).await;
    }
}

async fn dial(address: &str, connect: &Connect) -> Result<RawClient, String> {
    let stream = TcpStream::connect(address).await;
    let stream = stream.map_err(|error| error.to_string())?;
    stream
        .set_nodelay(true)
        .map_err(|error| error.to_string())?;
    let mut client = RawClient::over_tcp(stream);
    match client.handshake(connect).await {
        0 => Ok(client),
        code => Err(format!("answered with {code}")),
    }
}

pub fn entry(connection: u32, what: String, message: Option<&Message>) -> Entry {
    Entry {
        at: Timestamp::now(),
        connection,
        what,
        message: message.cloned(),
    }
}
