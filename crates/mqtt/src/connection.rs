//! One connection to a broker. It has a handle for requests and an event loop for incoming packets.

use std::net::SocketAddr;

use bytes::Bytes;
use rumqttc::{AsyncClient, Event, ManualAck, Packet, PublishOptions, QoS, SubscribeReasonCode};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::options::{ConnectOptions, ConnectOptionsError};

/// Publishes and subscribes on a connection. All clones use the same connection.
#[derive(Clone)]
pub struct MqttHandle {
    client: AsyncClient,
    /// This token is cancelled when the connection is closed.
    close_token: CancellationToken,
}

/// The network side of a connection. Packets are sent and received only while the event loop is
/// polled.
pub struct EventLoop {
    inner: rumqttc::EventLoop,
    client: AsyncClient,
    /// Cancels `MqttHandle::close_token` when the event loop is dropped. Otherwise callers of
    /// queued requests would wait forever, because `rumqttc` keeps the requests in its queue.
    _close_on_drop: DropGuard,
}

/// Acknowledgement of one received message. It must be sent on the connection that received the
/// message.
#[derive(Debug)]
pub struct Ack(ManualAck);

/// An event on a connection.
#[derive(Debug)]
pub enum MqttEvent {
    /// The broker accepted the connection.
    Connected {
        /// Whether the broker had stored a session of this client. If so, the subscriptions of the
        /// session are still active.
        session_present: bool,
    },
    /// A message was received.
    Message {
        /// Topic of the message.
        topic: String,
        /// Payload of the message.
        payload: Bytes,
        /// Whether this is a retained message that the broker sent because of a new subscription.
        retain: bool,
        /// MQTT packet identifier. 0 if the message has QoS 0.
        packet_id: u16,
        /// Acknowledgement of the message. `None` if the message has QoS 0. In a persistent
        /// session, the caller must pass the `Ack` to [`MqttHandle::acknowledge`]. In a clean
        /// session, `rumqttc` acknowledges the message.
        ack: Option<Ack>,
    },
    /// The broker acknowledged a subscription.
    SubAck {
        /// Whether the broker granted the subscription.
        is_granted: bool,
    },
    /// The connection could not be opened, or was closed. Contains the reason. No other event
    /// follows.
    Disconnected(String),
}

/// The maximum QoS with which the broker delivers the messages of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubscriptionQos {
    /// QoS 0. The broker stores no messages while the client is disconnected.
    AtMostOnce,
    /// QoS 1.
    AtLeastOnce,
}

/// The connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the MQTT connection is closed")]
pub struct ConnectionClosed;

/// Prepares a connection. The first poll of the [`EventLoop`] opens the connection.
///
/// # Errors
/// When the options are invalid.
pub fn connect(options: &ConnectOptions) -> Result<(MqttHandle, EventLoop), ConnectOptionsError> {
    let (client, mut inner) = AsyncClient::builder(options.to_rumqttc_options()?)
        .capacity(options.max_queued_requests)
        .build();
    // Disables Nagle's algorithm, which would only delay the small packets of this connection.
    inner.network_options.set_tcp_nodelay(true);
    inner
        .network_options
        .set_connection_timeout(options.connect_timeout.as_secs());
    if let Some(source_address) = options.source_address {
        let any_port = 0;
        inner
            .network_options
            .set_bind_addr(SocketAddr::new(source_address, any_port));
    }
    let close_token = CancellationToken::new();
    let event_loop = EventLoop {
        inner,
        client: client.clone(),
        _close_on_drop: close_token.clone().drop_guard(),
    };
    Ok((
        MqttHandle {
            client,
            close_token,
        },
        event_loop,
    ))
}

impl MqttHandle {
    /// Publishes with QoS 1 and waits for the PUBACK.
    ///
    /// # Errors
    /// When the connection closed before the PUBACK. It is unknown whether the broker received the
    /// message.
    pub async fn publish(&self, topic: String, payload: Vec<u8>) -> Result<(), ConnectionClosed> {
        let options = PublishOptions::new(QoS::AtLeastOnce);
        self.publish_and_wait(topic, payload, options).await
    }

    /// Publishes a retained message with QoS 1 and waits for the PUBACK. An empty payload deletes
    /// the retained message of the topic.
    ///
    /// # Errors
    /// When the connection closed before the PUBACK. It is unknown whether the broker received the
    /// message.
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
        self.wait_unless_closed(async {
            let notice = self.client.publish_tracked(topic, payload, options).await;
            let notice = notice.map_err(|_| ConnectionClosed)?;
            let puback = notice.wait_async().await;
            puback.map(drop).map_err(|_| ConnectionClosed)
        })
        .await
    }

    /// Publishes with QoS 0. The broker does not acknowledge the message.
    ///
    /// # Errors
    /// When the connection is closed.
    pub async fn publish_qos0(
        &self,
        topic: String,
        payload: Vec<u8>,
    ) -> Result<(), ConnectionClosed> {
        let options = PublishOptions::new(QoS::AtMostOnce);
        self.wait_unless_closed(async {
            let queued = self.client.publish(topic, payload, options).await;
            queued.map_err(|_| ConnectionClosed)
        })
        .await
    }

    /// Subscribes to a topic. The broker's response arrives as [`MqttEvent::SubAck`].
    ///
    /// # Errors
    /// When the connection is closed.
    pub async fn subscribe(
        &self,
        topic: String,
        qos: SubscriptionQos,
    ) -> Result<(), ConnectionClosed> {
        self.wait_unless_closed(async {
            let qos = match qos {
                SubscriptionQos::AtMostOnce => QoS::AtMostOnce,
                SubscriptionQos::AtLeastOnce => QoS::AtLeastOnce,
            };
            let queued = self.client.subscribe(topic, qos).await;
            queued.map_err(|_| ConnectionClosed)
        })
        .await
    }

    /// Subscribes to a topic with QoS 0 and waits for the SUBACK. Returns false if the broker
    /// rejected the subscription.
    ///
    /// # Errors
    /// When the connection closed before the SUBACK.
    pub async fn subscribe_qos0_and_wait(&self, topic: String) -> Result<bool, ConnectionClosed> {
        self.wait_unless_closed(async {
            let notice = self.client.subscribe_tracked(topic, QoS::AtMostOnce).await;
            let suback = notice.map_err(|_| ConnectionClosed)?.wait_async().await;
            let suback = suback.map_err(|_| ConnectionClosed)?;
            Ok(are_all_granted(&suback.return_codes))
        })
        .await
    }

    /// Unsubscribes from a topic without waiting for the broker. If the request queue is full, no
    /// request is sent and the subscription stays active.
    pub fn unsubscribe(&self, topic: String) {
        let _ = self.client.try_unsubscribe(topic);
    }

    /// Acknowledges a message that this connection received.
    ///
    /// # Errors
    /// When the connection is closed. The broker then resends the message.
    pub async fn acknowledge(&self, ack: Ack) -> Result<(), ConnectionClosed> {
        self.client
            .manual_ack(ack.0)
            .await
            .map_err(|_| ConnectionClosed)
    }

    /// Sends DISCONNECT. The broker then does not publish the last will.
    ///
    /// # Errors
    /// When the connection is already closed.
    pub async fn disconnect(&self) -> Result<(), ConnectionClosed> {
        self.client.disconnect().await.map_err(|_| ConnectionClosed)
    }

    /// Waits until `request` completes. Fails if the connection closes first.
    async fn wait_unless_closed<T>(
        &self,
        request: impl Future<Output = Result<T, ConnectionClosed>>,
    ) -> Result<T, ConnectionClosed> {
        tokio::select! {
            biased;
            result = request => result,
            () = self.close_token.cancelled() => Err(ConnectionClosed),
        }
    }
}

impl EventLoop {
    /// Waits for the next event. Packets are sent and received only while this future is polled.
    pub async fn next(&mut self) -> MqttEvent {
        self.next_unless(|_, _| false).await
    }

    /// Like [`next`](Self::next), but drops the QoS 0 messages for which `is_dropped` returns true. The
    /// parameters are the topic and the payload. Dropping a message here allocates no memory.
    pub async fn next_unless(
        &mut self,
        mut is_dropped: impl FnMut(&str, &[u8]) -> bool,
    ) -> MqttEvent {
        loop {
            match self.inner.poll().await {
                Ok(Event::Incoming(Packet::ConnAck(connack))) => {
                    return MqttEvent::Connected {
                        session_present: connack.session_present,
                    };
                }
                Ok(Event::Incoming(Packet::Publish(publish))) => {
                    let topic = String::from_utf8_lossy(&publish.topic);
                    if publish.qos == QoS::AtMostOnce && is_dropped(&topic, &publish.payload) {
                        continue;
                    }
                    return MqttEvent::Message {
                        topic: topic.into_owned(),
                        ack: self.client.prepare_ack(&publish).map(Ack),
                        retain: publish.retain,
                        packet_id: publish.pkid,
                        payload: publish.payload,
                    };
                }
                Ok(Event::Incoming(Packet::SubAck(suback))) => {
                    return MqttEvent::SubAck {
                        is_granted: are_all_granted(&suback.return_codes),
                    };
                }
                Ok(_) => {}
                Err(error) => return MqttEvent::Disconnected(error.to_string()),
            }
        }
    }
}

fn are_all_granted(codes: &[SubscribeReasonCode]) -> bool {
    codes
        .iter()
        .all(|code| !matches!(code, SubscribeReasonCode::Failure))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClientTls, SessionKind};

    #[tokio::test]
    async fn publish_fails_when_the_event_loop_is_dropped() {
        let options = ConnectOptions {
            url: "mqtt://127.0.0.1:1".into(),
            client_id: "me".into(),
            session: SessionKind::Clean,
            tls: ClientTls::default(),
            credentials: None,
            token: None,
            will: None,
            max_packet_size: 1000,
            max_queued_requests: 1,
            connect_timeout: std::time::Duration::from_secs(5),
            source_address: None,
        };
        let (handle, event_loop) = connect(&options).unwrap();
        let pending_publish = tokio::spawn({
            let handle = handle.clone();
            async move { handle.publish("a".into(), vec![]).await }
        });
        tokio::task::yield_now().await;
        drop(event_loop);
        assert_eq!(pending_publish.await.unwrap(), Err(ConnectionClosed));
        // A later publish also fails at once. It does not wait for space in the request queue,
        // which is full.
        assert_eq!(
            handle.publish("b".into(), vec![]).await,
            Err(ConnectionClosed)
        );
    }
}
