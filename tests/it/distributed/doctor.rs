//! `doctor` names each broken part with its cure.

use crate::support::fleet::Fleet;
use crate::support::services::{self, Service};
use crate::support::{Certs, unique};

async fn fails(fleet: &Fleet, part: &str, words: &[&str]) {
    let (code, said) = fleet.command(&["doctor"]).await;
    assert_eq!(code, Some(1), "{said}");
    let line = said.lines().find(|line| line.starts_with("FAIL"));
    let line = line.unwrap_or_else(|| panic!("nothing failed: {said}"));
    assert!(line.contains(part), "{line}");
    for word in words {
        assert!(line.contains(word), "no {word:?} in {line}");
    }
}

#[tokio::test]
async fn doctor_names_wrong_passwords_wrong_authorities_missing_topics_and_old_schemas() {
    let fleet = Fleet::new().await;
    let (code, said) = fleet.command(&["doctor"]).await;
    assert_eq!(code, Some(0), "{said}");

    let fleet = fleet.set("postgres.password", "wrong-wrong");
    fails(&fleet, "database", &["postgres.password"]).await;
    let fleet = fleet.set("postgres.password", "cc-secret");

    let folder = tempfile::tempdir().unwrap();
    let strangers = Certs::init(folder.path()).await;
    let fleet = fleet
        .set("postgres.tls", "verify-full")
        .set("postgres.host", "localhost")
        .set("postgres.ca", strangers.file("ca.pem").display());
    fails(&fleet, "database", &["postgres.ca"]).await;
    let fleet = fleet.set("postgres.tls", "require").set("postgres.ca", "");

    let empty = services::database(services::shared().await.postgres).await;
    let fleet = fleet.set("postgres.database", &empty);
    fails(
        &fleet,
        "database",
        &["no schema", "cloud-connector migrate"],
    )
    .await;
    // A schema of before: its last step is not there yet.
    let (code, said) = fleet.command(&["migrate"]).await;
    assert_eq!(code, Some(0), "{said}");
    forget_last_migration(&empty).await;
    fails(&fleet, "database", &["cloud-connector migrate"]).await;
    let fleet = fleet.set("postgres.database", "nowhere");
    fails(&fleet, "database", &["postgres.database"]).await;
}

#[tokio::test]
async fn doctor_names_what_is_wrong_with_the_broker_and_the_queue() {
    let fleet = Fleet::new().await;
    let topic = unique("missing");
    let fleet = fleet.set("kafka.ingress_topic", &topic);
    fails(&fleet, "queue", &[topic.as_str(), "migrate --topics"]).await;
    let (code, said) = fleet.command(&["migrate", "--topics"]).await;
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = fleet.command(&["doctor"]).await;
    assert_eq!(code, Some(0), "{said}");

    let fleet = fleet.set("mqtt.password", "wrong-wrong");
    fails(&fleet, "broker", &["mqtt.password"]).await;
    let fleet = fleet.set("mqtt.password", "cc-secret");
    let nobody = format!("127.0.0.1:{}", services::free_port());
    let fleet = fleet.set("kafka.brokers", nobody);
    fails(&fleet, "queue", &["kafka.brokers"]).await;

    // A broker whose certificate is of another authority.
    let folder = tempfile::tempdir().unwrap();
    let certs = Certs::init(folder.path()).await;
    certs.issue("cloud-connector").await;
    let (_mosquitto, _, service) = Service::mosquitto_with_tls(&certs.file("")).await;
    let elsewhere = tempfile::tempdir().unwrap();
    let strangers = Certs::init(elsewhere.path()).await;
    let fleet = fleet
        .set(
            "kafka.brokers",
            format!("127.0.0.1:{}", services::shared().await.kafka),
        )
        .set("mqtt.url", format!("mqtts://localhost:{service}"))
        .set("mqtt.ca", strangers.file("ca.pem").display())
        .set(
            "mqtt.certificate",
            certs.file("cloud-connector.pem").display(),
        )
        .set("mqtt.key", certs.file("cloud-connector.key").display());
    fails(&fleet, "broker", &["mqtt.ca"]).await;
    let fleet = fleet.set("mqtt.ca", certs.file("ca.pem").display());
    let (code, said) = fleet.command(&["doctor"]).await;
    assert_eq!(code, Some(0), "{said}");
}

async fn forget_last_migration(database: &str) {
    use sqlx::Connection as _;
    let port = services::shared().await.postgres;
    let url = format!("postgres://cc:cc-secret@127.0.0.1:{port}/{database}?sslmode=disable");
    let mut connection = sqlx::PgConnection::connect(&url).await.unwrap();
    let last =
        "DELETE FROM _sqlx_migrations WHERE version = (SELECT max(version) FROM _sqlx_migrations)";
    sqlx::query(last).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}
