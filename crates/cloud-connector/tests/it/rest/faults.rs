//! Tests of outages of the account translator, the database and the broker. Affected requests
//! return 503 or 504. They never report a client as disconnected.

use reqwest::RequestBuilder;
use serde_json::json;

use super::{ApiFixture, OWN_ACCOUNT, OWN_ORG};
use test_support::DeploymentMode;
use test_support::each_deployment;

/// Returns all requests that read or write the database. Each request has a label for error
/// messages. The label contains the method and the path.
fn requests_with_database_access(fixture: &ApiFixture) -> Vec<(String, RequestBuilder)> {
    let own_org_client_id = &fixture.own_org_client_id;
    let node = json!({"account": OWN_ACCOUNT, "node_id": own_org_client_id, "delay": 1});
    let message = json!({"account": OWN_ACCOUNT, "recipient": own_org_client_id, "directive": "d"});
    let batch = json!({"client_ids": [own_org_client_id]});
    let mut requests = vec![
        fixture.v2_request(OWN_ORG, "GET", "/connections"),
        fixture.v2_request(OWN_ORG, "GET", "/connections?cursor="),
        fixture.v2_request(OWN_ORG, "GET", "/connections?tag=a:b&search=c"),
        fixture.v2_request(
            OWN_ORG,
            "GET",
            &format!("/connections/{own_org_client_id}/status"),
        ),
        fixture
            .v2_request(OWN_ORG, "POST", "/connections/status")
            .json(&batch),
        fixture.v2_request(
            OWN_ORG,
            "POST",
            &format!("/connections/{own_org_client_id}/check"),
        ),
        fixture.v1_post_request(OWN_ACCOUNT, "/connection_status", &node),
        fixture.management_request("GET", "/connection"),
        fixture.management_request("GET", &format!("/connection/{OWN_ACCOUNT}")),
        fixture
            .management_request("POST", "/connection/status")
            .json(&node),
        fixture.v1_post_request(OWN_ACCOUNT, "/message", &message),
    ];
    requests.extend(requests_that_publish(fixture));
    let with_label = |request: RequestBuilder| {
        let built_request = request.try_clone().unwrap().build().unwrap();
        (
            format!("{} {}", built_request.method(), built_request.url().path()),
            request,
        )
    };
    requests.into_iter().map(with_label).collect()
}

/// Returns all requests that publish an MQTT message to the client.
fn requests_that_publish(fixture: &ApiFixture) -> Vec<RequestBuilder> {
    let own_org_client_id = &fixture.own_org_client_id;
    let node = json!({"account": OWN_ACCOUNT, "node_id": own_org_client_id, "delay": 1});
    let post_action = |action: &str| {
        fixture.v2_request(
            OWN_ORG,
            "POST",
            &format!("/connections/{own_org_client_id}/{action}"),
        )
    };
    let management_action =
        |action: &str| fixture.management_request("POST", &format!("/connection/{action}"));
    vec![
        post_action("message").json(&json!({"directive": "d"})),
        post_action("ping"),
        post_action("check?level=2"),
        post_action("check?level=3&directive=d"),
        post_action("reconnect").json(&json!({"delay": 1})),
        management_action("ping").json(&node),
        management_action("reconnect").json(&node),
        // Disconnect requests must be last, because they remove the connection.
        post_action("disconnect"),
        management_action("disconnect").json(&node),
    ]
}

each_deployment!(v1_requests_return_503_while_the_account_translator_is_unavailable);

async fn v1_requests_return_503_while_the_account_translator_is_unavailable(mode: DeploymentMode) {
    // No process listens on port 9.
    let settings = [("tenant.translator_url", "http://127.0.0.1:9")];
    let fixture = ApiFixture::start(mode, &settings).await;
    let node = json!({"account": OWN_ACCOUNT, "node_id": fixture.own_org_client_id, "delay": 1});
    let message =
        json!({"account": OWN_ACCOUNT, "recipient": fixture.own_org_client_id, "directive": "d"});
    let management_post = |path: &str| {
        fixture
            .management_request("POST", &format!("/connection/{path}"))
            .json(&node)
    };
    for request in [
        fixture.v1_post_request(OWN_ACCOUNT, "/message", &message),
        fixture.v1_post_request(OWN_ACCOUNT, "/connection_status", &node),
        fixture.management_request("GET", "/connection/010101"),
        management_post("status"),
        management_post("ping"),
        management_post("reconnect"),
        management_post("disconnect"),
    ] {
        let response = request.send().await.unwrap();
        let path = response.url().path().to_owned();
        assert_eq!(response.status(), 503, "{path}");
        assert!(response.headers().contains_key("retry-after"), "{path}");
        let body: serde_json::Value = response.json().await.unwrap();
        assert_eq!(body["title"], "Service unavailable", "{path}");
    }
    // The list of all connections does not use the account translator, so it still works.
    let list = fixture
        .management_request("GET", "/connection")
        .send()
        .await
        .unwrap();
    assert_eq!(list.status(), 200);
}

mod distributed_outages {
    use serde_json::{Value, json};

    use super::{ApiFixture, OWN_ORG, requests_that_publish, requests_with_database_access};
    use test_support::cluster::Cluster;
    use test_support::connector::send_signal;
    use test_support::{Deployment, eventually};

    fn cluster(fixture: &ApiFixture) -> &Cluster {
        match &fixture.deployment {
            Deployment::Distributed(distributed) => &distributed.cluster,
            Deployment::Embedded(_) => {
                unreachable!("the tests of this module use the distributed mode")
            }
        }
    }

    #[tokio::test]
    async fn all_endpoints_return_503_while_the_database_is_down_and_work_afterwards() {
        let mut fixture = ApiFixture::start_with_new_deployment(
            Deployment::distributed_with_private_postgres,
            // Each request waits this long. Together they must not exceed the keep-alive of the client.
            &[("postgres.acquire_timeout", "1s")],
        )
        .await;
        let postgres = cluster(&fixture).postgres.as_ref().unwrap();
        postgres.stop().await;
        for (label, request) in requests_with_database_access(&fixture) {
            let response = request.send().await.unwrap();
            assert_eq!(response.status(), 503, "{label}");
            assert!(response.headers().contains_key("retry-after"), "{label}");
            let body: Value = response.json().await.unwrap();
            assert_eq!(body["title"], "Service unavailable", "{label}");
        }
        assert!(!fixture.deployment.is_ready().await);
        postgres.start_process().await;
        let message = json!({"directive": "d"});
        let path = format!("/connections/{}/message", fixture.own_org_client_id);
        eventually("a sent message after the database restart", || async {
            let request = fixture.v2_request(OWN_ORG, "POST", &path).json(&message);
            let response = request.send().await.unwrap();
            (response.status() == 201).then_some(())
        })
        .await;
        assert_eq!(fixture.own_client.next_message().await.1["directive"], "d");
        eventually("readiness", || async {
            fixture.deployment.is_ready().await.then_some(())
        })
        .await;
    }

    /// Checks that each request returns 503 with the id of the message that was not sent, and that
    /// the client is still connected.
    async fn assert_publishing_requests_return_503(fixture: &ApiFixture) {
        for request in requests_that_publish(fixture) {
            let response = request.send().await.unwrap();
            let path = response.url().path().to_owned();
            assert_eq!(response.status(), 503, "{path}");
            assert!(response.headers().contains_key("retry-after"), "{path}");
            let body: Value = response.json().await.unwrap();
            let title = match path.rsplit('/').next() {
                Some("ping") => "Ping failed",
                Some("check") => "Check failed",
                _ => "Error passing message to rhc client",
            };
            assert_eq!(body["title"], title, "{path}");
            uuid::Uuid::parse_str(body["id"].as_str().unwrap_or_default()).unwrap();
        }
        let path = format!("/connections/{}/status", fixture.own_org_client_id);
        let status = super::super::json_response(fixture.v2_request(OWN_ORG, "GET", &path))
            .await
            .1;
        assert_eq!(
            status["status"], "connected",
            "a disconnect command that was not sent removed the connection"
        );
    }

    #[tokio::test]
    async fn messages_and_commands_return_503_while_the_broker_is_down_and_work_afterwards() {
        let fixture = ApiFixture::start_with_new_deployment(Deployment::distributed, &[]).await;
        let mosquitto = &cluster(&fixture).mosquitto;
        mosquitto.stop().await;
        eventually("readiness to fail", || async {
            (!fixture.deployment.is_ready().await).then_some(())
        })
        .await;
        assert_publishing_requests_return_503(&fixture).await;
        mosquitto.start_process().await;
        let path = format!("/connections/{}/message", fixture.own_org_client_id);
        let wait_for_success = eventually("a sent message after the broker restart", || async {
            let request = fixture.v2_request(OWN_ORG, "POST", &path);
            let response = request
                .json(&json!({"directive": "d"}))
                .send()
                .await
                .unwrap();
            (response.status() == 201).then_some(())
        });
        wait_for_success.await;
    }

    #[tokio::test]
    async fn messages_and_commands_return_504_if_the_broker_sends_no_puback() {
        let settings = [("mqtt.publish_timeout", "300ms")];
        let mut fixture =
            ApiFixture::start_with_new_deployment(Deployment::distributed, &settings).await;
        let pid = std::fs::read_to_string(cluster(&fixture).mosquitto.file_path("pid")).unwrap();
        let pid: i32 = pid.trim().parse().unwrap();
        send_signal(pid, "STOP");
        let message = json!({"directive": "late"});
        let path = format!("/connections/{}/message", fixture.own_org_client_id);
        let (status, body) = {
            let request = fixture.v2_request(OWN_ORG, "POST", &path).json(&message);
            super::super::json_response(request).await
        };
        assert_eq!((status, &body["status"]), (504, &json!(504)), "{body}");
        assert_publishing_requests_fail_without_puback(&fixture).await;
        send_signal(pid, "CONT");
        // The client receives the message after the 504 response. The 504 response contains the id
        // of this message.
        let (_, delivered) = fixture.own_client.next_message().await;
        assert_eq!(
            (&delivered["directive"], &delivered["message_id"]),
            (&json!("late"), &body["id"])
        );
        eventually("an acknowledged message", || async {
            let request = fixture.v2_request(OWN_ORG, "POST", &path).json(&message);
            let (status, _) = super::super::json_response(request).await;
            (status == 201).then_some(())
        })
        .await;
    }

    /// Checks the responses while the broker sends no SUBACK and no PUBACK. Ping and check
    /// subscribe to the client's responses before they publish, so they publish nothing and return
    /// 503. All other requests publish and return 504.
    async fn assert_publishing_requests_fail_without_puback(fixture: &ApiFixture) {
        for request in requests_that_publish(fixture) {
            let response = request.send().await.unwrap();
            let url = response.url().clone();
            let waits_for_response = url.path().contains("/v2/")
                && (url.path().ends_with("ping") || url.path().ends_with("check"));
            let expected_status = if waits_for_response { 503 } else { 504 };
            assert_eq!(response.status(), expected_status, "{url}");
            let body: Value = response.json().await.unwrap();
            let detail = body["detail"].as_str().unwrap();
            assert_eq!(
                detail.contains("may still arrive"),
                !waits_for_response,
                "{url}: {detail}"
            );
        }
    }
}
