//! Tests of the isolation of tenants. An organization cannot query clients of other organizations
//! or send messages to them. No caller can query a client without a tenant or send messages to it.

use serde_json::{Value, json};

use super::{ApiFixture, OK, OTHER_ACCOUNT, OWN_ACCOUNT, OWN_ORG, error_response, json_response};
use test_support::DeploymentMode;
use test_support::each_deployment;

each_deployment!(no_endpoint_gives_access_to_clients_of_other_tenants);

async fn no_endpoint_gives_access_to_clients_of_other_tenants(mode: DeploymentMode) {
    let fixture = ApiFixture::start(mode, &[]).await;
    let disconnected = json!({"status": "disconnected"});
    for hidden_client_id in [
        &fixture.other_org_client_id,
        &fixture.satellite_id,
        &fixture.tenantless_client_id,
    ] {
        for id_variant in path_variants(hidden_client_id) {
            let path = format!("/connections/{id_variant}/status");
            let response = json_response(fixture.v2_request(OWN_ORG, "GET", &path)).await;
            assert_eq!(response, (OK, disconnected.clone()), "{id_variant}");
            let path = format!("/connections/{id_variant}/message");
            let message_request = fixture
                .v2_request(OWN_ORG, "POST", &path)
                .json(&json!({"directive": "d"}));
            assert_eq!(error_response(message_request).await.0, 404, "{id_variant}");
            for command_name in ["ping", "reconnect", "disconnect"] {
                let path = format!("/connections/{id_variant}/{command_name}");
                let command_request = fixture
                    .v2_request(OWN_ORG, "POST", &path)
                    .json(&json!({"delay": 1}));
                assert_eq!(
                    error_response(command_request).await.0,
                    404,
                    "{command_name} {id_variant}"
                );
            }
            for level in 1..=3 {
                let path = format!("/connections/{id_variant}/check?level={level}&directive=d");
                let response = json_response(fixture.v2_request(OWN_ORG, "POST", &path)).await;
                let expected = json!({"level": level, "status": "disconnected"});
                assert_eq!(response, (OK, expected), "{id_variant}");
            }
        }
        let batch = json!({"client_ids": [hidden_client_id]});
        let response = json_response(
            fixture
                .v2_request(OWN_ORG, "POST", "/connections/status")
                .json(&batch),
        )
        .await;
        let expected = json!({"status": "disconnected", "client_id": hidden_client_id});
        assert_eq!(response.1, json!({"data": [expected]}));
        for query in [
            format!("search={hidden_client_id}"),
            format!("search={hidden_client_id}&cursor="),
            "cursor=&limit=10000".to_owned(),
            "dispatcher=echo&limit=10000".to_owned(),
            "dispatcher=foreman_rh_cloud&cursor=".to_owned(),
            "fqdn=raw.example&tag=make:raw".to_owned(),
        ] {
            let path = format!("/connections?{query}");
            let (_, list) = json_response(fixture.v2_request(OWN_ORG, "GET", &path)).await;
            let listed_data = list["data"].to_string();
            assert!(
                !listed_data.contains(hidden_client_id.as_str()),
                "{query}: {list}"
            );
        }
        let node = json!({"account": OWN_ACCOUNT, "node_id": hidden_client_id});
        let response =
            json_response(fixture.v1_post_request(OWN_ACCOUNT, "/connection_status", &node)).await;
        assert_eq!(response.1, disconnected);
        let message =
            json!({"account": OWN_ACCOUNT, "recipient": hidden_client_id, "directive": "d"});
        assert_eq!(
            error_response(fixture.v1_post_request(OWN_ACCOUNT, "/message", &message))
                .await
                .0,
            404
        );
    }
    let (_, page) = json_response(fixture.v2_request(OWN_ORG, "GET", "/connections")).await;
    assert_eq!(page["meta"]["count"], 1);
    assert_eq!(page["data"][0]["client_id"], fixture.own_org_client_id);
    assert_management_endpoints_hide_the_tenantless_client(&fixture).await;
    let no_connections = json!([]);
    for org in [" ", "''", "%00"] {
        let (status, body) =
            status_and_optional_json(fixture.v2_request(org, "GET", "/connections")).await;
        assert!(
            status == 401 || body["data"] == no_connections,
            "{org:?} {body}"
        );
    }
}

/// Checks that the v1 management endpoints do not return the tenantless client.
async fn assert_management_endpoints_hide_the_tenantless_client(fixture: &ApiFixture) {
    for account in [OWN_ACCOUNT, OTHER_ACCOUNT, ""] {
        let node = json!({"account": account, "node_id": fixture.tenantless_client_id, "delay": 1});
        for path in ["status", "ping", "reconnect", "disconnect"] {
            let path = format!("/connection/{path}");
            let (_, response) =
                json_response(fixture.management_request("POST", &path).json(&node)).await;
            let is_hidden = response["status"] == "disconnected" || response["status"] == 400;
            assert!(is_hidden, "{account} {path} {response}");
        }
    }
    let (_, all) = json_response(fixture.management_request("GET", "/connection")).await;
    assert!(
        !all.to_string().contains(&fixture.tenantless_client_id),
        "{all}"
    );
}

/// Sends the request. Returns the status and the body. The body is null if the response is not
/// JSON.
async fn status_and_optional_json(request: reqwest::RequestBuilder) -> (u16, Value) {
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or_default())
}

/// Returns variants of a client id for a URL path: unchanged, percent-encoded, in upper case, and
/// with appended or prepended characters.
fn path_variants(client_id: &str) -> Vec<String> {
    let encoded_bytes: Vec<String> = client_id
        .bytes()
        .map(|byte| format!("%{byte:02x}"))
        .collect();
    vec![
        client_id.to_owned(),
        encoded_bytes.concat(),
        client_id.to_uppercase(),
        format!("{client_id}%20"),
        format!("{client_id}%00"),
        format!("x%2F..%2F{client_id}"),
    ]
}
