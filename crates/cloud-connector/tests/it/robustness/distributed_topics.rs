//! Kafka topics that are recreated, and Kafka clients that fail.

use std::collections::BTreeSet;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _, StreamConsumer};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use sqlx::PgConnection;

use test_support::cluster::{Cluster, ConnectorProcess};
use test_support::mqtt::{Connect, RawClient, control_out_topic, online_message};
use test_support::{eventually, unique_id};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Deletes the topics of the cluster, and creates them again.
async fn recreate_topics(cluster: &Cluster) {
    delete_topics(cluster).await;
    create_topics(cluster).await;
}

/// Deletes the topics of the cluster. Waits until they no longer exist.
async fn delete_topics(cluster: &Cluster) {
    let admin: AdminClient<DefaultClientContext> = client_config(cluster).create().unwrap();
    let topics = [
        cluster.setting("kafka.ingress_topic"),
        cluster.setting("kafka.answers_topic"),
        cluster.setting("kafka.slow_topic"),
    ];
    let options = AdminOptions::new().operation_timeout(Some(REQUEST_TIMEOUT));
    for result in admin.delete_topics(&topics, &options).await.unwrap() {
        result.unwrap();
    }
    eventually("the topics to be deleted", || async {
        let metadata = admin
            .inner()
            .fetch_metadata(Some(topics[0]), REQUEST_TIMEOUT);
        let exists = metadata
            .ok()?
            .topics()
            .iter()
            .any(|it| it.error().is_none());
        (!exists).then_some(())
    })
    .await;
}

/// Creates the topics of the cluster as an operator would.
async fn create_topics(cluster: &Cluster) {
    let (code, output) = cluster.run_command(&["migrate", "--topics"]).await;
    assert_eq!(code, Some(0), "{output}");
}

fn client_config(cluster: &Cluster) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", cluster.setting("kafka.brokers"));
    config
}

/// Writes the online messages of clients directly to a partition of the ingress topic.
async fn produce_online(cluster: &Cluster, partition: i32, client_ids: &[String]) {
    let producer: FutureProducer = client_config(cluster).create().unwrap();
    let topic = cluster.setting("kafka.ingress_topic");
    let payload = online_message().to_string();
    let deliveries: Vec<_> = client_ids
        .iter()
        .map(|client_id| {
            let mqtt_topic = control_out_topic(client_id);
            let headers = OwnedHeaders::new().insert(Header {
                key: "topic",
                value: Some(&mqtt_topic),
            });
            let record = FutureRecord::to(topic)
                .partition(partition)
                .key(client_id)
                .payload(&payload)
                .headers(headers);
            producer
                .send_result(record)
                .map_err(|(error, _)| error)
                .unwrap()
        })
        .collect();
    for delivery in deliveries {
        delivery.await.unwrap().unwrap();
    }
}

/// Publishes the online messages of clients to the MQTT broker. Returns when the broker has
/// acknowledged all messages.
async fn publish_online(cluster: &Cluster, client_ids: &[String]) {
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    for client_id in client_ids {
        let mut client = RawClient::connect(&address, &Connect::new(client_id)).await;
        let topic = control_out_topic(client_id);
        client.must_publish(&topic, &online_message()).await;
    }
}

fn client_ids(prefix: &str, count: usize) -> Vec<String> {
    let prefix = unique_id(prefix);
    (0..count).map(|n| format!("{prefix}-{n:04}")).collect()
}

async fn recorded_ids(database: &mut PgConnection) -> BTreeSet<String> {
    let rows: Vec<String> = sqlx::query_scalar("SELECT client_id FROM connections")
        .fetch_all(database)
        .await
        .unwrap();
    rows.into_iter().collect()
}

/// Waits until all clients are recorded. On a timeout, the message contains the number of the
/// clients that are missing.
async fn wait_until_recorded(cluster: &Cluster, expected_ids: &[String]) {
    let mut database = cluster.connect_to_database().await;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    loop {
        let recorded = recorded_ids(&mut database).await;
        let missing = expected_ids.iter().filter(|id| !recorded.contains(*id));
        let missing: Vec<_> = missing.collect();
        if missing.is_empty() {
            return;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "{} of {} acknowledged messages are not recorded: {missing:?}; {} messages are in the topic",
            missing.len(),
            expected_ids.len(),
            read_ingress_topic(cluster).await.len()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Returns the messages in the ingress topic.
async fn read_ingress_topic(cluster: &Cluster) -> Vec<Vec<u8>> {
    let brokers = cluster.setting("kafka.brokers").to_owned();
    let topic = cluster.setting("kafka.ingress_topic").to_owned();
    let read = move || test_support::services::read_topic(&brokers, &topic);
    tokio::task::spawn_blocking(read).await.unwrap()
}

/// Returns the offsets that the group of the ingress topic has committed.
fn committed_offsets(cluster: &Cluster) -> Vec<i64> {
    let consumer: BaseConsumer = client_config(cluster)
        .set("group.id", cluster.setting("kafka.group"))
        .create()
        .unwrap();
    let topic = cluster.setting("kafka.ingress_topic");
    let mut partitions = rdkafka::TopicPartitionList::new();
    partitions.add_partition_range(topic, 0, 3);
    let committed = consumer.committed_offsets(partitions, REQUEST_TIMEOUT);
    let committed = committed.unwrap();
    let offsets = committed.elements().into_iter();
    offsets.filter_map(|it| it.offset().to_raw()).collect()
}

#[tokio::test]
async fn messages_of_a_recreated_topic_are_recorded_from_its_beginning() {
    let cluster = Cluster::new().await;
    let _ingest = cluster.start(&["ingest"]).await;
    let record = cluster.start(&["record"]).await;
    let old_clients = client_ids("old", 100);
    publish_online(&cluster, &old_clients).await;
    wait_until_recorded(&cluster, &old_clients).await;

    recreate_topics(&cluster).await;
    let new_clients = client_ids("new", 60);
    publish_online(&cluster, &new_clients).await;
    wait_until_recorded(&cluster, &new_clients).await;
    record.wait_until_ready().await;

    // The offsets that the orderly stop commits are valid in the new topic.
    record.send_signal("TERM");
    assert!(record.wait_for_exit().await.success());
    let later_clients = client_ids("later", 60);
    publish_online(&cluster, &later_clients).await;
    let _record = cluster.start(&["record"]).await;
    wait_until_recorded(&cluster, &later_clients).await;
}

#[tokio::test]
async fn a_recreated_topic_is_read_from_its_beginning_even_if_it_is_longer_than_the_old_topic() {
    let cluster = Cluster::new().await;
    let record = cluster.start(&["record"]).await;
    let old_clients = client_ids("old", 50);
    produce_online(&cluster, 1, &old_clients).await;
    wait_until_recorded(&cluster, &old_clients).await;

    // The reader reads the new topic only after the topic is already longer than the old one.
    record.send_signal("STOP");
    recreate_topics(&cluster).await;
    let new_clients = client_ids("new", 200);
    produce_online(&cluster, 1, &new_clients).await;
    record.send_signal("CONT");
    wait_until_recorded(&cluster, &new_clients).await;
}

#[tokio::test]
async fn offsets_of_a_deleted_topic_are_not_used_in_the_topic_that_replaces_it() {
    let cluster = Cluster::new().await;
    let record = cluster.start(&["record"]).await;
    let old_clients = client_ids("old", 50);
    produce_online(&cluster, 2, &old_clients[..10]).await;
    wait_until_recorded(&cluster, &old_clients[..10]).await;

    // The recorder commits the remaining messages only after the topic was recreated.
    let mut lock_holder = cluster.connect_to_database().await;
    for statement in ["BEGIN", "LOCK TABLE connections IN EXCLUSIVE MODE"] {
        sqlx::query(statement)
            .execute(&mut lock_holder)
            .await
            .unwrap();
    }
    produce_online(&cluster, 2, &old_clients[10..]).await;
    eventually("the messages to be in flight", || async {
        let in_flight = "cloud_connector_record_in_flight_messages";
        (record.read_metric(in_flight, "").await > 39.5).then_some(())
    })
    .await;
    recreate_topics(&cluster).await;
    sqlx::query("COMMIT")
        .execute(&mut lock_holder)
        .await
        .unwrap();
    wait_until_recorded(&cluster, &old_clients).await;
    record.send_signal("TERM");
    assert!(record.wait_for_exit().await.success());
    let committed = committed_offsets(&cluster);
    println!("offsets committed for the new, empty topic: {committed:?}");

    let new_clients = client_ids("new", 100);
    produce_online(&cluster, 2, &new_clients).await;
    let _record = cluster.start(&["record"]).await;
    wait_until_recorded(&cluster, &new_clients).await;
    assert!(committed.iter().all(|offset| *offset <= 0), "{committed:?}");
}

#[tokio::test]
async fn messages_that_are_acknowledged_while_a_topic_is_missing_are_recorded() {
    let cluster = Cluster::new().await;
    let ingest = cluster.start(&["ingest"]).await;
    let record = cluster.start(&["record"]).await;
    let old_clients = client_ids("old", 20);
    publish_online(&cluster, &old_clients).await;
    wait_until_recorded(&cluster, &old_clients).await;

    delete_topics(&cluster).await;
    let new_clients = client_ids("new", 100);
    publish_online(&cluster, &new_clients[..50]).await;
    let problems = [&ingest, &record].map(ConnectorProcess::wait_until_not_ready);
    for problem in futures::future::join_all(problems).await {
        let text = problem.to_string();
        assert!(text.contains("topic missing"), "{text}");
    }
    create_topics(&cluster).await;
    publish_online(&cluster, &new_clients[50..]).await;
    wait_until_recorded(&cluster, &new_clients).await;
    ingest.wait_until_ready().await;
    record.wait_until_ready().await;
}

#[tokio::test]
async fn a_record_process_that_cannot_join_its_consumer_group_is_not_ready() {
    let cluster = Cluster::new().await;
    // Another consumer joins the group first, with an assignor that the readers do not support.
    let incompatible: StreamConsumer = client_config(&cluster)
        .set("group.id", cluster.setting("kafka.group"))
        .set("partition.assignment.strategy", "cooperative-sticky")
        .set("enable.auto.commit", "false")
        .create()
        .unwrap();
    incompatible
        .subscribe(&[cluster.setting("kafka.ingress_topic")])
        .unwrap();
    let join = eventually("the incompatible consumer to join", || async {
        let _ = tokio::time::timeout(Duration::from_millis(50), incompatible.recv()).await;
        let assignment = incompatible.assignment().unwrap();
        (assignment.count() > 0).then_some(())
    });
    join.await;

    let record = cluster.start_without_waiting(&["record"]).await;
    eventually("the reader to report that it cannot join", || async {
        let (status, body) = record.readiness().await;
        let text = body["components"]["kafka_ingress"].as_str()?;
        (status == 503 && text == "consumer group not joined").then_some(())
    })
    .await;
    eventually("the reason in the log", || async {
        let is_reason = |line: &String| {
            line.contains("cannot join the consumer group")
                && line.contains("InconsistentGroupProtocol")
        };
        // Each request runs the health check, which logs its error.
        record.readiness().await;
        record.log_lines.lock().iter().any(is_reason).then_some(())
    })
    .await;
    eventually("the other reader to be ready", || async {
        let (_, body) = record.readiness().await;
        (body["components"]["kafka_answers"] == "ok").then_some(())
    })
    .await;
    let clients = client_ids("waiting", 10);
    produce_online(&cluster, 0, &clients).await;
    drop(incompatible);
    record.wait_until_ready().await;
    wait_until_recorded(&cluster, &clients).await;
}

#[tokio::test]
async fn a_member_without_partitions_is_ready_and_reports_standby() {
    let cluster = Cluster::new().await.set("kafka.partitions", 1);
    recreate_topics(&cluster).await;
    let processes = [
        cluster.start(&["record"]).await,
        cluster.start(&["record"]).await,
    ];
    eventually("one active and one standby reader per topic", || async {
        let mut states = Vec::new();
        for process in &processes {
            let (status, body) = process.readiness().await;
            states.push((status, body["components"].clone()));
        }
        let is_complete =
            ["kafka_ingress", "kafka_answers", "kafka_slow"]
                .iter()
                .all(|component| {
                    let mut texts: Vec<_> = states
                        .iter()
                        .map(|(status, components)| {
                            (*status, components[component].as_str().unwrap_or(""))
                        })
                        .collect();
                    texts.sort_unstable();
                    texts == [(200, "ok"), (200, "standby")]
                });
        is_complete.then_some(())
    })
    .await;
}

#[tokio::test]
async fn ingest_continues_after_a_fatal_error_of_the_kafka_producer() {
    let mock_kafka = MockCluster::new(1).unwrap();
    let cluster = Cluster::new().await;
    // With a shared subscription, `ingest` does not read the ids of topics, which the mock cluster does
    // not support.
    let cluster = cluster
        .set("kafka.brokers", mock_kafka.bootstrap_servers())
        .set("mqtt.shared_subscription_group", "group");
    for topic in ["kafka.ingress_topic", "kafka.answers_topic"] {
        mock_kafka
            .create_topic(cluster.setting(topic), 4, 1)
            .unwrap();
    }
    let ingest = cluster.start(&["ingest"]).await;
    let clients = client_ids("client", 30);
    publish_online(&cluster, &clients[..10]).await;
    let messages_in_kafka = || async { read_ingress_topic(&cluster).await.len() };
    eventually("the first messages in Kafka", || async {
        (messages_in_kafka().await >= 10).then_some(())
    })
    .await;

    // Kafka rejects a message whose sequence number is the next expected one. For an idempotent
    // producer, this error is fatal.
    let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER;
    mock_kafka.request_errors(RDKafkaApiKey::Produce, &[error]);
    publish_online(&cluster, &clients[10..]).await;
    let count = tokio::time::timeout(Duration::from_secs(15), async {
        loop {
            let count = messages_in_kafka().await;
            if count >= 30 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let result = count.await;
    let (status, body) = ingest.readiness().await;
    assert!(
        result.is_ok(),
        "{} of 30 acknowledged messages are in Kafka; readiness: {status} {body}",
        messages_in_kafka().await
    );
}

/// Waits for the next messages of a consumer. Returns their offsets.
async fn read_offsets(consumer: &mut kafka::Consumer, count: usize) -> Vec<i64> {
    let mut offsets = Vec::new();
    while offsets.len() < count {
        let event = tokio::time::timeout(Duration::from_secs(20), consumer.next()).await;
        let event = event.unwrap_or_else(|_| panic!("timed out after the offsets {offsets:?}"));
        if let kafka::ConsumerEvent::Message(message) = event {
            offsets.push(message.offset);
        }
    }
    offsets
}

#[tokio::test]
async fn no_message_is_skipped_after_a_failed_seek() {
    let cluster = Cluster::new().await;
    let overrides = cloud_connector::config::Overrides {
        config_file: None,
        flags: Vec::new(),
    };
    let env_vars = cluster.env_vars().iter().cloned();
    let config = cloud_connector::config::load_with_environment(&overrides, env_vars).unwrap();
    let topic = cluster.setting("kafka.ingress_topic");
    let group = cluster.setting("kafka.group");
    let mut consumer = kafka::Consumer::new(&config.config.kafka, topic, group, |_| {}).unwrap();
    let clients = client_ids("client", 20);
    produce_online(&cluster, 3, &clients[..10]).await;
    assert_eq!(
        read_offsets(&mut consumer, 10).await,
        (0..10).collect::<Vec<_>>()
    );
    consumer.store_offset(3, 4);

    // librdkafka rejects a seek in a partition that is not assigned.
    consumer.reread(99, 5);
    produce_online(&cluster, 3, &clients[10..]).await;
    let offsets = read_offsets(&mut consumer, 10).await;
    assert!(
        offsets[0] <= 5 && offsets.windows(2).all(|pair| pair[1] == pair[0] + 1),
        "the chunk from offset 5 is not read again: {offsets:?}"
    );
}
