//! One connection to a broker: one half to publish with, one half that hears what happens.

use bytes::Bytes;
use rumqttc::{AsyncClient, Event, ManualAck, Packet, PublishOptions, QoS, SubscribeReasonCode};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::options::{Options, OptionsError};

/// Publishes and subscribes. A clone is the same connection.
#[derive(Clone)]
pub struct MqttHandle {
    client: AsyncClient,
    ended: CancellationToken,
}

/// The half that must be polled for anything to happen.
pub struct EventLoop {
    events: rumqttc::EventLoop,
    client: AsyncClient,
    /// Whoever waits for the link must hear of its end: what is queued for it is kept by the
    /// publishers, so that nothing else would tell them.
    _ended: DropGuard,
}

/// The right to acknowledge one message, on the connection that it came on.
#[derive(Debug)]
pub struct Ack(ManualAck);

/// Something that happened.
#[derive(Debug)]
pub enum MqttEvent {
    /// The broker accepted us.
    Connected {
        /// Whether it had kept our session: then our subscriptions are in force.
        session_present: bool,
    },
    /// A message came.
    Message {
        /// On this topic.
        topic: String,
        /// Its bytes.
        payload: Bytes,
        /// Whether it is a replay of a retained message.
        retain: bool,
        /// Its packet id; 0 for QoS 0.
        packet_id: u16,
        /// For a kept session: acknowledge it with this.
        ack: Option<Ack>,
    },
    /// A subscription was answered; false where it was refused.
    Subscribed(bool),
    /// The connection is gone, or could not be had. Nothing more will happen on it.
    Lost(String),
}

/// The connection has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the MQTT connection has ended")]
pub struct ConnectionClosed;

/// Prepares a connection; the first poll of the [`EventLoop`] makes it.
///
/// # Errors
/// When the settings cannot work.
pub fn connect(options: &Options) -> Result<(MqttHandle, EventLoop), OptionsError> {
    let (client, mut events) = AsyncClient::builder(options.build()?)
        .capacity(options.requests)
        .build();
    // Small packets, each awaited by the other side: waiting to fill a segment only delays.
    events.network_options.set_tcp_nodelay(true);
    let within = options.connect_within.as_secs();
    events.network_options.set_connection_timeout(within);
    let ended = CancellationToken::new();
    let link = EventLoop {
        events,
        client: client.clone(),
        _ended: ended.clone().drop_guard(),
    };
    Ok((MqttHandle { client, ended }, link))
}

impl MqttHandle {
    /// Publishes with QoS 1 and waits for the broker's acknowledgement.
    ///
    /// # Errors
    /// When the connection ended before it: the broker may have the message or not.
    pub async fn publish(&self, topic: String, payload: Vec<u8>) -> Result<(), ConnectionClosed> {
        let options = PublishOptions::new(QoS::AtLeastOnce);
        self.publish_and_wait(topic, payload, options).await
    }

    /// As [`MqttHandle::publish`], and the broker keeps the message for whoever subscribes later. An
    /// empty payload removes what it kept.
    ///
    /// # Errors
    /// When the connection ended before the acknowledgement.
    pub async fn publish_retained(
        &self,
        topic: String,
        payload: Vec<u8>,
    ) -> Result<(), ConnectionClosed> {
        let options = PublishOptions::new(QoS::AtLeastOnce).retained();
        self.publish_and_wait(topic, payload, options).await
    }

    async fn publish_and_wait(
        &self,
        topic: String,
        payload: Vec<u8>,
        options: PublishOptions,
    ) -> Result<(), ConnectionClosed> {
        let acknowledged = async {
            let notice = self.client.publish_tracked(topic, payload, options).await;
            let notice = notice.map_err(|_| ConnectionClosed)?;
            notice
                .wait_async()
                .await
                .map(drop)
                .map_err(|_| ConnectionClosed)
        };
        self.or_closed(acknowledged).await
    }

    /// Publishes with QoS 0: nobody says whether it arrived.
    ///
    /// # Errors
    /// When the connection has ended.
    pub async fn publish_unacknowledged(
        &self,
        topic: String,
        payload: Vec<u8>,
    ) -> Result<(), ConnectionClosed> {
        let options = PublishOptions::new(QoS::AtMostOnce);
        let handed_over = async {
            let handed_over = self.client.publish(topic, payload, options).await;
            handed_over.map_err(|_| ConnectionClosed)
        };
        self.or_closed(handed_over).await
    }

    /// Asks for a topic; the answer is a [`MqttEvent`].
    ///
    /// # Errors
    /// When the connection has ended.
    pub async fn subscribe(&self, topic: String) -> Result<(), ConnectionClosed> {
        let asked = async {
            let asked = self.client.subscribe(topic, QoS::AtLeastOnce).await;
            asked.map_err(|_| ConnectionClosed)
        };
        self.or_closed(asked).await
    }

    /// Asks for a topic, and waits for the broker's answer: false where it refuses.
    ///
    /// # Errors
    /// When the connection ended before it.
    pub async fn subscribe_and_wait(&self, topic: String) -> Result<bool, ConnectionClosed> {
        let answered = async {
            let notice = self.client.subscribe_tracked(topic, QoS::AtLeastOnce).await;
            let answer = notice.map_err(|_| ConnectionClosed)?.wait_async().await;
            let answer = answer.map_err(|_| ConnectionClosed)?;
            Ok(are_granted(&answer.return_codes))
        };
        tokio::select! {
            biased;
            answered = answered => answered,
            () = self.ended.cancelled() => Err(ConnectionClosed),
        }
    }

    /// Lets go of a topic. If so much waits to be sent that this cannot, it stays subscribed.
    pub fn unsubscribe(&self, topic: String) {
        let _ = self.client.try_unsubscribe(topic);
    }

    /// Acknowledges a message of this connection.
    ///
    /// # Errors
    /// When the connection has ended: the broker will send the message again.
    pub async fn acknowledge(&self, ack: Ack) -> Result<(), ConnectionClosed> {
        self.client
            .manual_ack(ack.0)
            .await
            .map_err(|_| ConnectionClosed)
    }

    /// Leaves cleanly: the will does not fire.
    ///
    /// # Errors
    /// When the connection has ended already.
    pub async fn disconnect(&self) -> Result<(), ConnectionClosed> {
        self.client.disconnect().await.map_err(|_| ConnectionClosed)
    }

    async fn or_closed(
        &self,
        done: impl Future<Output = Result<(), ConnectionClosed>>,
    ) -> Result<(), ConnectionClosed> {
        tokio::select! {
            biased;
            done = done => done,
            () = self.ended.cancelled() => Err(ConnectionClosed),
        }
    }
}

impl EventLoop {
    /// Waits for the next thing to happen. Must be polled on, in a task of its own.
    pub async fn next(&mut self) -> MqttEvent {
        loop {
            match self.events.poll().await {
                Ok(Event::Incoming(Packet::ConnAck(answer))) => {
                    return MqttEvent::Connected {
                        session_present: answer.session_present,
                    };
                }
                Ok(Event::Incoming(Packet::Publish(publish))) => {
                    return MqttEvent::Message {
                        topic: String::from_utf8_lossy(&publish.topic).into_owned(),
                        ack: self.client.prepare_ack(&publish).map(Ack),
                        retain: publish.retain,
                        packet_id: publish.pkid,
                        payload: publish.payload,
                    };
                }
                Ok(Event::Incoming(Packet::SubAck(answer))) => {
                    return MqttEvent::Subscribed(are_granted(&answer.return_codes));
                }
                Ok(_) => {}
                Err(error) => return MqttEvent::Lost(error.to_string()),
            }
        }
    }
}

fn are_granted(codes: &[SubscribeReasonCode]) -> bool {
    let mut codes = codes.iter();
    codes.all(|code| !matches!(code, SubscribeReasonCode::Failure))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mqtt::{ClientTls, Session};

    #[tokio::test]
    async fn whoever_waits_for_a_link_hears_of_its_end() {
        let options = Options {
            url: "mqtt://127.0.0.1:1".into(),
            client_id: "me".into(),
            session: Session::Clean,
            tls: ClientTls::default(),
            credentials: None,
            token: None,
            will: None,
            max_packet_size: 1000,
            requests: 1,
            connect_within: std::time::Duration::from_secs(5),
        };
        let (publisher, link) = connect(&options).unwrap();
        let first = tokio::spawn({
            let publisher = publisher.clone();
            async move { publisher.publish("a".into(), vec![]).await }
        });
        tokio::task::yield_now().await;
        drop(link);
        assert_eq!(first.await.unwrap(), Err(ConnectionClosed));
        // Also when it was over before, and the queue is full.
        assert_eq!(
            publisher.publish("b".into(), vec![]).await,
            Err(ConnectionClosed)
        );
    }
}
