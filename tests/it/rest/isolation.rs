//! Isolation of tenants: an organization cannot see or reach clients of other organizations, and no
//! caller can see or reach a client without a tenant.

use serde_json::{Value, json};

use super::{ApiFixture, OK, OTHER_ACCOUNT, OWN_ACCOUNT, OWN_ORG, error_response, json_response};
use crate::each_deployment;
use crate::support::Deployment;

each_deployment!(no_endpoint_returns_or_reaches_clients_of_other_tenants);

async fn no_endpoint_returns_or_reaches_clients_of_other_tenants(deployment: Deployment) {
    let fixture = ApiFixture::start(deployment, &[]).await;
    let disconnected = json!({"status": "disconnected"});
    for hidden_id in [
        &fixture.other_id,
        &fixture.satellite_id,
        &fixture.tenantless_id,
    ] {
        for encoded_id in path_encodings(hidden_id) {
            let path = format!("/connections/{encoded_id}/status");
            let response = json_response(fixture.v2(OWN_ORG, "GET", &path)).await;
            assert_eq!(response, (OK, disconnected.clone()), "{encoded_id}");
            let path = format!("/connections/{encoded_id}/message");
            let sent = fixture
                .v2(OWN_ORG, "POST", &path)
                .json(&json!({"directive": "d"}));
            assert_eq!(error_response(sent).await.0, 404, "{encoded_id}");
            for command_name in ["ping", "reconnect", "disconnect"] {
                let path = format!("/connections/{encoded_id}/{command_name}");
                let command = fixture
                    .v2(OWN_ORG, "POST", &path)
                    .json(&json!({"delay": 1}));
                assert_eq!(
                    error_response(command).await.0,
                    404,
                    "{command_name} {encoded_id}"
                );
            }
            for level in 1..=3 {
                let path = format!("/connections/{encoded_id}/check?level={level}&directive=d");
                let response = json_response(fixture.v2(OWN_ORG, "POST", &path)).await;
                let expected = json!({"level": level, "status": "disconnected"});
                assert_eq!(response, (OK, expected), "{encoded_id}");
            }
        }
        let batch = json!({"client_ids": [hidden_id]});
        let response = json_response(
            fixture
                .v2(OWN_ORG, "POST", "/connections/status")
                .json(&batch),
        )
        .await;
        let expected = json!({"status": "disconnected", "client_id": hidden_id});
        assert_eq!(response.1, json!({"data": [expected]}));
        for query in [
            format!("search={hidden_id}"),
            format!("search={hidden_id}&cursor="),
            "cursor=&limit=10000".to_owned(),
            "dispatcher=echo&limit=10000".to_owned(),
            "dispatcher=foreman_rh_cloud&cursor=".to_owned(),
            "fqdn=raw.example&tag=make:raw".to_owned(),
        ] {
            let path = format!("/connections?{query}");
            let (_, list) = json_response(fixture.v2(OWN_ORG, "GET", &path)).await;
            let listed = list["data"].to_string();
            assert!(!listed.contains(hidden_id.as_str()), "{query}: {list}");
        }
        let node = json!({"account": OWN_ACCOUNT, "node_id": hidden_id});
        let response = json_response(fixture.v1(OWN_ACCOUNT, "/connection_status", &node)).await;
        assert_eq!(response.1, disconnected);
        let message = json!({"account": OWN_ACCOUNT, "recipient": hidden_id, "directive": "d"});
        assert_eq!(
            error_response(fixture.v1(OWN_ACCOUNT, "/message", &message))
                .await
                .0,
            404
        );
    }
    let (_, listed) = json_response(fixture.v2(OWN_ORG, "GET", "/connections")).await;
    assert_eq!(listed["meta"]["count"], 1);
    assert_eq!(listed["data"][0]["client_id"], fixture.own_id);
    // A client without a tenant is hidden from management endpoints, too.
    for account in [OWN_ACCOUNT, OTHER_ACCOUNT, ""] {
        let node = json!({"account": account, "node_id": fixture.tenantless_id, "delay": 1});
        for path in ["status", "ping", "reconnect", "disconnect"] {
            let path = format!("/connection/{path}");
            let (_, response) = json_response(fixture.management("POST", &path).json(&node)).await;
            let is_hidden = response["status"] == "disconnected" || response["status"] == 400;
            assert!(is_hidden, "{account} {path} {response}");
        }
    }
    let (_, all) = json_response(fixture.management("GET", "/connection")).await;
    assert!(!all.to_string().contains(&fixture.tenantless_id), "{all}");
    let no_connections = json!([]);
    for org in [" ", "''", "%00"] {
        let (status, body) = status_and_body(fixture.v2(org, "GET", "/connections")).await;
        assert!(
            status == 401 || body["data"] == no_connections,
            "{org:?} {body}"
        );
    }
}

/// Sends the request. Returns the status and the body, which is null if it is no JSON.
async fn status_and_body(request: reqwest::RequestBuilder) -> (u16, Value) {
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or_default())
}

/// Spellings of a client id in a URL path: escaped, in upper case, with appended or prepended
/// characters.
fn path_encodings(client_id: &str) -> Vec<String> {
    let escaped: Vec<String> = client_id
        .bytes()
        .map(|byte| format!("%{byte:02x}"))
        .collect();
    vec![
        client_id.to_owned(),
        escaped.concat(),
        client_id.to_uppercase(),
        format!("{client_id}%20"),
        format!("{client_id}%00"),
        format!("x%2F..%2F{client_id}"),
    ]
}
