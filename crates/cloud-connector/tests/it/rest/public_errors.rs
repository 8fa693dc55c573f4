//! Tests that responses contain no user names, addresses and errors of the operating system. The
//! log contains them.

use serde_json::{Value, json};

use test_support::cluster::{Cluster, ConnectorProcess};
use test_support::{Connector, Deployment, eventually};

/// Texts that no response may contain.
const PRIVATE_TEXTS: [&str; 7] = [
    "os error",
    "127.0.0.1",
    "secret-user",
    "secret-host",
    "cc-secret",
    "refused (",
    "/tmp/",
];

fn assert_public(body: &Value) {
    let text = body.to_string();
    for private_text in PRIVATE_TEXTS {
        assert!(!text.contains(private_text), "{private_text}: {text}");
    }
}

/// Waits until `/readiness` reports one of these causes for a component. On a busy machine, the first
/// report can be a timeout.
async fn wait_for_cause(process: &ConnectorProcess, component: &str, causes: &[&str]) {
    eventually(&format!("{causes:?} of {component}"), || async {
        let (status, body) = process.readiness().await;
        assert_public(&body);
        let cause = body["components"][component].as_str()?;
        (status == 503 && causes.contains(&cause)).then_some(())
    })
    .await;
}

async fn assert_logged(process: &ConnectorProcess, texts: &[&str]) {
    eventually("the error in the log", || async {
        let is_error = |line: &String| {
            line.contains("component is not healthy")
                && texts.iter().all(|text| line.contains(text))
        };
        process.log_lines.lock().iter().any(is_error).then_some(())
    })
    .await;
}

mod distributed {
    use super::*;

    #[tokio::test]
    async fn readiness_reports_a_rejected_database_user_without_its_name() {
        let cluster = Cluster::new().await.set("postgres.user", "secret-user");
        let process = cluster.start_without_waiting(&["record"]).await;
        wait_for_cause(&process, "store", &["authentication failed"]).await;
        assert_logged(&process, &["\"store\"", "secret-user"]).await;
    }

    #[tokio::test]
    async fn readiness_reports_the_cause_if_the_database_cannot_be_reached() {
        let mut cluster = Cluster::new().await;
        for (setting, value, expected_cause, logged_text) in [
            ("postgres.port", "1", "connection refused", "os error"),
            (
                "postgres.host",
                "secret-host.invalid",
                "name not resolved",
                "lookup",
            ),
            (
                "postgres.database",
                "secret-user",
                "database missing",
                "secret-user",
            ),
        ] {
            let original = cluster.setting(setting).to_owned();
            cluster = cluster.set(setting, value);
            let process = cluster.start_without_waiting(&["api"]).await;
            wait_for_cause(&process, "store", &[expected_cause]).await;
            assert_logged(&process, &["\"store\"", logged_text]).await;
            cluster = cluster.set(setting, original);
        }
    }

    #[tokio::test]
    async fn readiness_reports_a_missing_schema() {
        let services = test_support::services::shared_services().await;
        let database = test_support::services::create_database(services.postgres_port).await;
        let cluster = Cluster::new().await.set("postgres.database", database);
        let process = cluster.start_without_waiting(&["record"]).await;
        wait_for_cause(&process, "store", &["schema missing"]).await;
    }

    #[tokio::test]
    async fn readiness_reports_the_cause_if_the_broker_cannot_be_reached() {
        let cluster = Cluster::new().await.set("mqtt.url", "mqtt://127.0.0.1:1");
        let process = cluster.start_without_waiting(&["ingest", "api"]).await;
        for component in ["mqtt_ingest", "mqtt_api"] {
            eventually("the refused connection", || async {
                let (_, body) = process.readiness().await;
                assert_public(&body);
                (body["components"][component] == "connection refused").then_some(())
            })
            .await;
        }
        let url = format!("mqtt://127.0.0.1:{}", cluster.mosquitto.port);
        let cluster = cluster
            .set("mqtt.url", url)
            .set("mqtt.username", "secret-user");
        let process = cluster.start_without_waiting(&["ingest"]).await;
        eventually("the rejected user", || async {
            let (_, body) = process.readiness().await;
            assert_public(&body);
            (body["components"]["mqtt_ingest"] == "authentication failed").then_some(())
        })
        .await;
    }

    #[tokio::test]
    async fn readiness_reports_the_cause_if_kafka_cannot_be_reached() {
        let cluster = Cluster::new().await.set("kafka.brokers", "127.0.0.1:1");
        let process = cluster.start_without_waiting(&["record"]).await;
        wait_for_cause(&process, "kafka_ingress", &["not connected", "timeout"]).await;
    }

    #[tokio::test]
    async fn a_message_without_a_broker_returns_503_without_the_address_of_the_broker() {
        let deployment = Deployment::distributed(&[]).await;
        let Deployment::Distributed(distributed) = &deployment else {
            unreachable!("the deployment is distributed");
        };
        let client_id = test_support::unique_id("unreachable");
        let _client = super::super::connect_client(&deployment, &client_id, "echo").await;
        distributed.cluster.mosquitto.stop().await;
        let body = eventually("status 503", || async {
            let message = json!({"directive": "d"});
            let (status, body) = deployment.send_message(&client_id, message).await;
            (status == 503).then_some(body)
        })
        .await;
        assert_public(&body);
        let detail = body["detail"].as_str().unwrap();
        assert!(detail.contains("MQTT broker"), "{detail}");
    }
}

#[tokio::test]
async fn readiness_reports_a_lost_database_file_without_its_path() {
    let connector = Connector::start().await;
    std::fs::remove_file(connector.data_dir().join("cloud-connector.db")).unwrap();
    let data_dir = connector.data_dir().display().to_string();
    eventually("the lost file", || async {
        let request = connector.unauthenticated_request("GET", "/readiness");
        // The process stops because of the lost file.
        let body: Value = request.send().await.ok()?.json().await.ok()?;
        assert!(!body.to_string().contains(&data_dir), "{body}");
        let store = &body["components"]["store"];
        (store == "database file deleted or replaced").then_some(())
    })
    .await;
}
