//! A connection to a broker: one half to publish with, one half that hears what happens.

use std::time::Duration;

use bytes::Bytes;
use rumqttc::{
    AsyncClient, Event, EventLoop, LastWill, MqttOptions, Packet, PublishOptions, QoS,
    TlsConfiguration, Transport,
};

use super::{ClientTls, ClientTlsError};

/// What the broker may send at once; the crate's own limit is 10 KiB, and a larger message would
/// come again and again.
const MAX_PACKET: usize = 2 * 1024 * 1024;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Whom to connect to, and as whom.
#[derive(Debug, Clone)]
pub struct Options {
    /// The broker's host name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Our client id.
    pub client_id: String,
    /// Certificates; none for a plain connection.
    pub tls: Option<ClientTls>,
    /// Topic and payload of the last will.
    pub will: Option<(String, Vec<u8>)>,
}

/// Publishes and subscribes. A clone is the same connection.
#[derive(Clone)]
pub struct Publisher(AsyncClient);

/// The half that must be polled for anything to happen.
pub struct Link {
    events: EventLoop,
    is_lost: bool,
    pause: Duration,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Happening {
    /// The broker accepted us. Subscribe now.
    Connected,
    /// A message came.
    Message {
        /// On this topic.
        topic: String,
        /// Its bytes.
        payload: Bytes,
    },
    /// A subscription was answered; false where it was refused.
    Subscribed(bool),
    /// The connection is gone, or could not be had. The next poll tries again after a pause.
    Lost(String),
}

/// The connection has ended for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the MQTT connection has ended")]
pub struct Ended;

/// Prepares a connection; the first poll of the [`Link`] makes it.
///
/// # Errors
/// When a certificate file cannot be used.
pub fn connect(options: Options) -> Result<(Publisher, Link), ClientTlsError> {
    let mut mqtt = MqttOptions::new(options.client_id, (options.host, options.port));
    mqtt.set_keep_alive(30)
        .set_clean_session(true)
        .set_max_packet_size(MAX_PACKET, MAX_PACKET);
    if let Some(tls) = &options.tls {
        let config = TlsConfiguration::Rustls(tls.config()?);
        mqtt.set_transport(Transport::tls_with_config(config));
    }
    if let Some((topic, payload)) = options.will {
        mqtt.set_last_will(LastWill::new(topic, payload, QoS::AtLeastOnce, false));
    }
    let (client, events) = AsyncClient::builder(mqtt).capacity(64).build();
    let link = Link {
        events,
        is_lost: false,
        pause: Duration::ZERO,
    };
    Ok((Publisher(client), link))
}

impl Publisher {
    /// Publishes with QoS 1 and waits for the broker's acknowledgement.
    ///
    /// # Errors
    /// When the connection ended before it.
    pub async fn publish(&self, topic: String, payload: Vec<u8>) -> Result<(), Ended> {
        let options = PublishOptions::new(QoS::AtLeastOnce);
        let notice = self.0.publish_tracked(topic, payload, options).await;
        let notice = notice.map_err(|_| Ended)?;
        notice.wait_async().await.map(drop).map_err(|_| Ended)
    }

    /// Asks for a topic; the answer is a [`Happening`].
    ///
    /// # Errors
    /// When the connection has ended.
    pub async fn subscribe(&self, topic: String) -> Result<(), Ended> {
        let asked = self.0.subscribe(topic, QoS::AtLeastOnce).await;
        asked.map_err(|_| Ended)
    }

    /// Leaves cleanly: the will does not fire.
    ///
    /// # Errors
    /// When the connection has ended already.
    pub async fn disconnect(&self) -> Result<(), Ended> {
        self.0.disconnect().await.map_err(|_| Ended)
    }
}

impl Link {
    /// Waits for the next thing to happen. After a loss it pauses, ever longer, before it connects
    /// again: the crate itself would try at once.
    pub async fn next(&mut self) -> Happening {
        loop {
            if self.is_lost {
                tokio::time::sleep(self.pause).await;
                self.is_lost = false;
            }
            match self.events.poll().await {
                Ok(Event::Incoming(Packet::ConnAck(_))) => {
                    self.pause = Duration::ZERO;
                    return Happening::Connected;
                }
                Ok(Event::Incoming(Packet::Publish(publish))) => {
                    return Happening::Message {
                        topic: String::from_utf8_lossy(&publish.topic).into_owned(),
                        payload: publish.payload,
                    };
                }
                Ok(Event::Incoming(Packet::SubAck(answer))) => {
                    let granted = answer
                        .return_codes
                        .iter()
                        .all(|code| !matches!(code, rumqttc::SubscribeReasonCode::Failure));
                    return Happening::Subscribed(granted);
                }
                Ok(_) => {}
                Err(error) => {
                    self.is_lost = true;
                    self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
                    return Happening::Lost(error.to_string());
                }
            }
        }
    }
}
