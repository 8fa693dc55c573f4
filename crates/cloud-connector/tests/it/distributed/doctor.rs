//! Tests that the `doctor` command reports each problem with its fix.

use test_support::cluster::Cluster;
use test_support::services::{self, Service};
use test_support::{Certs, unique_id};

/// Runs `doctor`, which must fail. The first line that starts with FAIL must contain `check_name`
/// and all `hints`.
async fn assert_doctor_fails(cluster: &Cluster, check_name: &str, hints: &[&str]) {
    let (code, output) = cluster.run_command(&["doctor"]).await;
    assert_eq!(code, Some(1), "{output}");
    let line = output.lines().find(|line| line.starts_with("FAIL"));
    let line = line.unwrap_or_else(|| panic!("no check failed: {output}"));
    assert!(line.contains(check_name), "{line}");
    for hint in hints {
        assert!(line.contains(hint), "no {hint:?} in {line}");
    }
}

#[tokio::test]
async fn doctor_reports_each_database_problem_with_its_fix() {
    let cluster = Cluster::new().await;
    let (code, output) = cluster.run_command(&["doctor"]).await;
    assert_eq!(code, Some(0), "{output}");

    let cluster = cluster.set("postgres.password", "wrong-wrong");
    assert_doctor_fails(&cluster, "database", &["postgres.password"]).await;
    let cluster = cluster.set("postgres.password", "cc-secret");

    let folder = tempfile::tempdir().unwrap();
    let other_certs = Certs::init(folder.path()).await;
    let cluster = cluster
        .set("postgres.tls", "verify-full")
        .set("postgres.host", "localhost")
        .set("postgres.ca", other_certs.file_path("ca.pem").display());
    assert_doctor_fails(&cluster, "database", &["postgres.ca"]).await;
    let cluster = cluster
        .set("postgres.tls", "require")
        .set("postgres.ca", "");

    let empty_database =
        services::create_database(services::shared_services().await.postgres_port).await;
    let cluster = cluster.set("postgres.database", &empty_database);
    assert_doctor_fails(
        &cluster,
        "database",
        &["no schema", "cloud-connector migrate"],
    )
    .await;
    // The test migrates the database, and then deletes the record of the latest migration. `doctor`
    // must report that a migration is missing.
    let (code, output) = cluster.run_command(&["migrate"]).await;
    assert_eq!(code, Some(0), "{output}");
    delete_last_migration_record(&empty_database).await;
    assert_doctor_fails(&cluster, "database", &["cloud-connector migrate"]).await;
    let cluster = cluster.set("postgres.database", "missing");
    assert_doctor_fails(&cluster, "database", &["postgres.database"]).await;
}

#[tokio::test]
async fn doctor_reports_each_broker_and_kafka_problem_with_its_fix() {
    let cluster = Cluster::new().await;
    let topic = unique_id("missing");
    let cluster = cluster.set("kafka.ingress_topic", &topic);
    assert_doctor_fails(&cluster, "Kafka", &[topic.as_str(), "migrate --topics"]).await;
    let (code, output) = cluster.run_command(&["migrate", "--topics"]).await;
    assert_eq!(code, Some(0), "{output}");
    let (code, output) = cluster.run_command(&["doctor"]).await;
    assert_eq!(code, Some(0), "{output}");

    let cluster = cluster.set("mqtt.password", "wrong-wrong");
    assert_doctor_fails(&cluster, "broker", &["mqtt.password"]).await;
    let cluster = cluster.set("mqtt.password", "cc-secret");
    let unused_address = format!("127.0.0.1:{}", services::free_port());
    let cluster = cluster.set("kafka.brokers", unused_address);
    assert_doctor_fails(&cluster, "Kafka", &["kafka.brokers"]).await;

    // The CA in `mqtt.ca` did not issue the certificate of the broker.
    let folder = tempfile::tempdir().unwrap();
    let certs = Certs::init(folder.path()).await;
    certs.issue_client_certificate("cloud-connector").await;
    let (_mosquitto, ports) = Service::start_mosquitto_with_tls(&certs.file_path("")).await;
    let other_dir = tempfile::tempdir().unwrap();
    let other_certs = Certs::init(other_dir.path()).await;
    let cluster = cluster
        .set(
            "kafka.brokers",
            format!("127.0.0.1:{}", services::shared_services().await.kafka_port),
        )
        .set("mqtt.url", format!("mqtts://localhost:{}", ports.connector))
        .set("mqtt.ca", other_certs.file_path("ca.pem").display())
        .set(
            "mqtt.certificate",
            certs.file_path("cloud-connector.pem").display(),
        )
        .set("mqtt.key", certs.file_path("cloud-connector.key").display());
    assert_doctor_fails(&cluster, "broker", &["mqtt.ca"]).await;
    let cluster = cluster.set("mqtt.ca", certs.file_path("ca.pem").display());
    let (code, output) = cluster.run_command(&["doctor"]).await;
    assert_eq!(code, Some(0), "{output}");
}

#[tokio::test]
async fn doctor_reports_a_broker_that_does_not_deliver_large_messages() {
    let cluster = Cluster::new().await;
    // The packet limit of the broker in deploy/mosquitto is 4.5 MiB.
    let cluster = cluster.set("http.max_body_bytes", 3 * 1024 * 1024);
    let hints = ["6291456 bytes", "maximum packet size of the broker"];
    assert_doctor_fails(&cluster, "broker", &hints).await;
    let cluster = cluster.set("http.max_body_bytes", 1024 * 1024);
    let cluster = cluster.set("mqtt.max_packet_size", 1024 * 1024);
    assert_doctor_fails(&cluster, "broker", &["mqtt.max_packet_size"]).await;
}

#[tokio::test]
async fn doctor_reports_a_broker_that_mixes_the_messages_of_a_shared_subscription() {
    let cluster = Cluster::new().await;
    let cluster = cluster.set("mqtt.shared_subscription_group", "recorders");
    let hints = ["different members", "hash_clientid", "mqtt.ingest_messages"];
    assert_doctor_fails(&cluster, "shared subscription", &hints).await;
}

#[tokio::test]
async fn doctor_warns_about_settings_of_the_server_that_can_lose_messages() {
    let cluster = Cluster::new().await;
    let database = cluster.setting("postgres.database").to_owned();
    let mut connection = cluster.connect_to_database().await;
    let set_off = format!("ALTER DATABASE {database} SET synchronous_commit = off");
    sqlx::query(sqlx::AssertSqlSafe(set_off))
        .execute(&mut connection)
        .await
        .unwrap();
    let (code, output) = cluster.run_command(&["doctor"]).await;
    assert_eq!(code, Some(0), "{output}");
    let warning = output.lines().find(|line| line.starts_with("WARN"));
    let warning = warning.unwrap_or_else(|| panic!("no warning: {output}"));
    assert!(warning.contains("database settings"), "{warning}");
    assert!(warning.contains("synchronous_commit is off"), "{warning}");
}

/// Makes the database look as if the last migration had not been applied.
async fn delete_last_migration_record(database_name: &str) {
    use sqlx::Connection as _;
    let port = services::shared_services().await.postgres_port;
    let url = format!("postgres://cc:cc-secret@127.0.0.1:{port}/{database_name}?sslmode=disable");
    let mut connection = sqlx::PgConnection::connect(&url).await.unwrap();
    let delete_sql =
        "DELETE FROM _sqlx_migrations WHERE version = (SELECT max(version) FROM _sqlx_migrations)";
    sqlx::query(delete_sql)
        .execute(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
}
