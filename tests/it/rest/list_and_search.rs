//! Connection lists: filters, search, and pagination with a cursor.

use reqwest::RequestBuilder;
use serde_json::{Value, json};

use super::{ApiFixture, OK, OTHER_ORG, OWN_ORG, error_response, json_response};
use crate::each_deployment;
use crate::support::mqtt::{Connect, RawClient, control_out, online};
use crate::support::{Deployment, eventually};

each_deployment!(
    filters_select_matching_connections,
    cursor_pages_return_every_connection_once,
);

const INSIGHTS_ID: &str = "3f1c7a52-0000-4000-8000-00000000000a";

/// Publishes an online message of `own_client` with more facts, dispatchers and tags.
async fn report_searchable_info(fixture: &mut ApiFixture) {
    let mut message = online();
    message["content"]["canonical_facts"] = json!({"insights_id": INSIGHTS_ID,
        "fqdn": "Web1.example.com", "ip_addresses": ["10.1.2.3"], "rack": "B7"});
    message["content"]["dispatchers"] = json!({"rhc_worker_playbook": {}, "echo": {}});
    message["content"]["tags"] = json!({"region": "us1", "tier": "a:b"});
    fixture
        .own_client
        .must_publish(&control_out(&fixture.own_id), &message)
        .await;
    let path = "/connections?tag=region:us1";
    eventually("the new tags", || async {
        let (_, list) = json_response(fixture.v2(OWN_ORG, "GET", path)).await;
        (list["meta"]["count"] == 1).then_some(())
    })
    .await;
}

async fn filters_select_matching_connections(deployment: Deployment) {
    let mut fixture = ApiFixture::start(deployment, &[]).await;
    report_searchable_info(&mut fixture).await;
    let list = |org: &str, query: &str| fixture.v2(org, "GET", &format!("/connections?{query}"));
    let without_hyphens = INSIGHTS_ID.replace('-', "").to_uppercase();
    let id_prefix = &fixture.own_id[..4];
    for matching in [
        "dispatcher=echo",
        "dispatcher=rhc-worker-playbook",
        "tag=region:us1",
        "tag=tier:a:b",
        "tag=region:us1&tag=tier:a%3Ab&dispatcher=echo",
        "fqdn=web1.EXAMPLE.com",
        &format!("insights_id={without_hyphens}"),
        "ip_addresses=10.1.2.3",
        "fact=rack:b7",
        "search=web1",
        &format!("search={id_prefix}"),
        "fqdn=&tag=&dispatcher=&search=",
    ] {
        let (status, found) = json_response(list(OWN_ORG, matching)).await;
        let count = &found["meta"]["count"];
        assert_eq!((status, count), (OK, &json!(1)), "{matching}");
        assert_eq!(found["data"][0]["client_id"], fixture.own_id, "{matching}");
    }
    for not_matching in [
        "dispatcher=playbook",
        "tag=region:us",
        "tag=region:us1&tag=region:us2",
        "fqdn=web1",
        "machine_id=x",
        "search=eb1",
        "search=%25",
        "fact=rack:B7%00",
    ] {
        let (status, found) = json_response(list(OWN_ORG, not_matching)).await;
        let empty = json!({"meta": {"count": 0}, "links": {}, "data": []});
        assert_eq!((status, found), (OK, empty), "{not_matching}");
    }
    for invalid in ["tag=region", "fact=x", &"tag=a:b&".repeat(17)] {
        let rejection = error_response(list(OWN_ORG, invalid)).await;
        assert_eq!(rejection, (400, "Invalid request".to_owned()), "{invalid}");
    }
    // Search terms match only clients of the caller's organization.
    let (_, found) = json_response(list(OTHER_ORG, "tag=region:us1")).await;
    assert_eq!(found["meta"]["count"], 0);
    let (_, found) = json_response(list(OTHER_ORG, "dispatcher=foreman-rh-cloud")).await;
    assert_eq!(found["data"][0]["client_id"], fixture.satellite_id);
    // Links keep the filters.
    let (_, page) = json_response(list(OWN_ORG, "tag=region:us1&limit=1&dispatcher=echo")).await;
    let link =
        "/api/cloud-connector/v2/connections?dispatcher=echo&limit=1&offset=0&tag=region%3Aus1";
    assert_eq!(page["links"]["first"], link);
}

async fn cursor_pages_return_every_connection_once(deployment: Deployment) {
    let fixture = ApiFixture::start(deployment, &[]).await;
    // `OTHER_ORG` has two clients.
    let mut client_ids = [fixture.other_id.clone(), fixture.satellite_id.clone()];
    client_ids.sort_unstable();
    let first_page = "/connections?cursor=&limit=1";
    let (status, page) = json_response(fixture.v2(OTHER_ORG, "GET", first_page)).await;
    assert_eq!(status, OK);
    let path = "/api/cloud-connector/v2/connections";
    let expected = json!({
        "meta": {"cursor": client_ids[0]},
        "links": {
            "first": format!("{path}?cursor=&limit=1"),
            "next": format!("{path}?cursor={}&limit=1", client_ids[0]),
        },
        "data": page["data"],
    });
    assert_eq!(page, expected);
    assert_eq!(page["data"][0]["client_id"], client_ids[0]);
    let next = page["links"]["next"].as_str().unwrap();
    let next = next.strip_prefix("/api/cloud-connector/v2").unwrap();
    let (_, last) = json_response(fixture.v2(OTHER_ORG, "GET", next)).await;
    assert_eq!(last["data"][0]["client_id"], client_ids[1]);
    assert_eq!(
        (&last["meta"], &last["links"]["next"]),
        (&json!({}), &Value::Null)
    );
    let after = |cursor: &str| -> RequestBuilder {
        fixture.v2(
            OTHER_ORG,
            "GET",
            &format!("/connections?cursor={cursor}&limit=1000"),
        )
    };
    let count = |page: Value| page["data"].as_array().unwrap().len();
    assert_eq!(count(json_response(after("")).await.1), 2);
    assert_eq!(count(json_response(after("~")).await.1), 0);
    assert_eq!(count(json_response(after("%00")).await.1), 2);
    // A new connection that sorts before the cursor does not change later pages.
    let new_id = format!("!{}", client_ids[0]);
    let mut client =
        RawClient::connect(&fixture.deployment.mqtt_address(), &Connect::new(&new_id)).await;
    client.must_publish(&control_out(&new_id), &online()).await;
    eventually("the new client's row", || fixture.deployment.row(&new_id)).await;
    let (_, repeated) = json_response(fixture.v2(OTHER_ORG, "GET", next)).await;
    assert_eq!(repeated["data"], last["data"]);
}
