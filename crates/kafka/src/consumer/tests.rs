//! Tests of the consumer with the mock cluster of librdkafka.

use std::time::Duration;

use futures::FutureExt as _;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use service::settings::SecretString;
use tokio::time::{sleep, timeout};

use super::*;
use crate::{KafkaSecurity, SaslMechanism};

const TOPIC: &str = "topic";
const DEADLINE: Duration = Duration::from_secs(20);

fn mock_cluster() -> MockCluster<'static, DefaultProducerContext> {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic(TOPIC, 1, 1).unwrap();
    cluster
}

fn consumer_of(cluster: &MockCluster<'_, DefaultProducerContext>) -> Consumer {
    let settings = KafkaSettings {
        brokers: Some(cluster.bootstrap_servers()),
        security: KafkaSecurity::Plaintext,
        sasl_mechanism: SaslMechanism::Plain,
        username: String::new(),
        password: SecretString::from(""),
        ca: None,
        ingress_topic: TOPIC.to_owned(),
        answers_topic: TOPIC.to_owned(),
        group: "group".to_owned(),
        answers_group: "group".to_owned(),
        session_timeout: Duration::from_secs(6).into(),
        partitions: 1,
        replication: 1,
    };
    Consumer::new(&settings, TOPIC, "group", |_| {}).unwrap()
}

/// Waits until the client receives a rebalance. The rebalance is not completed.
async fn receive_rebalance(consumer: &mut Consumer) -> RebalanceEvent {
    let rebalance = async {
        loop {
            tokio::select! {
                _ = consumer.client.recv() => {}
                Some(rebalance) = consumer.rebalances.recv() => return rebalance,
            }
        }
    };
    let rebalance = timeout(DEADLINE, rebalance).await;
    rebalance.expect("the consumer does not join its group")
}

fn message(partition: i32, offset: i64) -> KafkaMessage {
    KafkaMessage {
        partition,
        offset,
        payload: bytes::Bytes::new(),
        headers: std::collections::HashMap::new(),
        timestamp: None,
    }
}

#[tokio::test]
async fn the_client_is_replaced_after_a_failed_assignment_of_a_consumer_without_partitions() {
    let cluster = mock_cluster();
    let mut consumer = consumer_of(&cluster);
    let first_client = Arc::as_ptr(&consumer.client);
    let failure = OperationOutcome::Assigned(Err("the assignment failed".to_owned()));
    consumer.operation = Some(futures::future::ready(failure).boxed());
    // The first poll creates the new client. A later event of the old client must not be necessary.
    let event = consumer.next().now_or_never();
    assert!(event.is_none(), "unexpected event: {event:?}");
    assert_ne!(
        Arc::as_ptr(&consumer.client),
        first_client,
        "the client was not replaced"
    );
}

#[tokio::test]
async fn a_reread_that_is_requested_during_another_seek_precedes_further_messages() {
    let cluster = mock_cluster();
    let mut consumer = consumer_of(&cluster);
    let earlier_seek = OperationOutcome::Sought(Ok(()));
    consumer.operation = Some(futures::future::ready(earlier_seek).boxed());
    consumer.reread(0, 3);
    consumer.buffered_message = Some(message(1, 9));
    let event = consumer.next().now_or_never();
    assert!(event.is_none(), "returned before the seek: {event:?}");
    assert!(consumer.pending_seeks.is_empty(), "the seek is not started");
}

#[tokio::test]
async fn a_consumer_that_is_dropped_during_a_rebalance_leaves_its_group() {
    let cluster = mock_cluster();
    let mut consumer = consumer_of(&cluster);
    let rebalance = receive_rebalance(&mut consumer).await;
    assert!(matches!(rebalance, RebalanceEvent::Assigned(_)));
    let health_check = consumer.health_check();
    let client = Arc::downgrade(&consumer.client);
    // Another thread, so that the test ends even if the drop blocks.
    let dropping = std::thread::spawn(move || drop(consumer));
    let is_closed = async {
        while !dropping.is_finished() || client.strong_count() > 0 {
            sleep(Duration::from_millis(20)).await;
        }
    };
    let is_closed = timeout(DEADLINE, is_closed).await.is_ok();
    assert!(is_closed, "the client is not closed");
    let health = health_check.run().await;
    assert_eq!(health, Err("the consumer is closed".to_owned()));
}
