//! Tests of connection lists: filters, search, and pagination with a cursor.

use reqwest::RequestBuilder;
use serde_json::{Value, json};

use super::{ApiFixture, OK, OTHER_ORG, OWN_ORG, connect_client, error_response, json_response};
use test_support::each_deployment;
use test_support::mqtt::{control_out_topic, online_message};
use test_support::{DeploymentMode, eventually};

each_deployment!(
    list_filters_return_only_matching_connections,
    cursor_pages_return_every_connection_once,
);

const INSIGHTS_ID: &str = "3f1c7a52-0000-4000-8000-00000000000a";

/// Publishes an online message of `own_client` with facts, dispatchers and tags that the filters
/// can match. Returns when the API finds the client by a tag.
async fn publish_searchable_online_message(fixture: &mut ApiFixture) {
    let mut message = online_message();
    message["content"]["canonical_facts"] = json!({"insights_id": INSIGHTS_ID,
        "fqdn": "Web1.example.com", "ip_addresses": ["10.1.2.3"], "rack": "B7"});
    message["content"]["dispatchers"] = json!({"rhc_worker_playbook": {}, "echo": {}});
    message["content"]["tags"] = json!({"region": "us1", "tier": "a:b"});
    fixture
        .own_client
        .must_publish(&control_out_topic(&fixture.own_org_client_id), &message)
        .await;
    let path = "/connections?tag=region:us1";
    eventually("the new tags", || async {
        let (_, list) = json_response(fixture.v2_request(OWN_ORG, "GET", path)).await;
        (list["meta"]["count"] == 1).then_some(())
    })
    .await;
}

async fn list_filters_return_only_matching_connections(mode: DeploymentMode) {
    let mut fixture = ApiFixture::start(mode, &[]).await;
    publish_searchable_online_message(&mut fixture).await;
    let list_request =
        |org: &str, query: &str| fixture.v2_request(org, "GET", &format!("/connections?{query}"));
    let insights_id_without_hyphens = INSIGHTS_ID.replace('-', "").to_uppercase();
    let client_id_prefix = &fixture.own_org_client_id[..4];
    for matching_query in [
        "dispatcher=echo",
        "dispatcher=rhc-worker-playbook",
        "tag=region:us1",
        "tag=tier:a:b",
        "tag=region:us1&tag=tier:a%3Ab&dispatcher=echo",
        "fqdn=web1.EXAMPLE.com",
        &format!("insights_id={insights_id_without_hyphens}"),
        "ip_addresses=10.1.2.3",
        "fact=rack:b7",
        "search=web1",
        &format!("search={client_id_prefix}"),
        "fqdn=&tag=&dispatcher=&search=",
    ] {
        let (status, page) = json_response(list_request(OWN_ORG, matching_query)).await;
        let count = &page["meta"]["count"];
        assert_eq!((status, count), (OK, &json!(1)), "{matching_query}");
        assert_eq!(
            page["data"][0]["client_id"], fixture.own_org_client_id,
            "{matching_query}"
        );
    }
    for non_matching_query in [
        "dispatcher=playbook",
        "tag=region:us",
        "tag=region:us1&tag=region:us2",
        "fqdn=web1",
        "machine_id=x",
        "search=eb1",
        "search=%25",
        "fact=rack:B7%00",
    ] {
        let (status, page) = json_response(list_request(OWN_ORG, non_matching_query)).await;
        let empty_page = json!({"meta": {"count": 0}, "links": {}, "data": []});
        assert_eq!((status, page), (OK, empty_page), "{non_matching_query}");
    }
    for invalid_query in ["tag=region", "fact=x", &"tag=a:b&".repeat(17)] {
        let rejection = error_response(list_request(OWN_ORG, invalid_query)).await;
        assert_eq!(
            rejection,
            (400, "Invalid request".to_owned()),
            "{invalid_query}"
        );
    }
    // Search terms match only clients of the caller's organization.
    let (_, page) = json_response(list_request(OTHER_ORG, "tag=region:us1")).await;
    assert_eq!(page["meta"]["count"], 0);
    let (_, page) = json_response(list_request(OTHER_ORG, "dispatcher=foreman-rh-cloud")).await;
    assert_eq!(page["data"][0]["client_id"], fixture.satellite_id);
    // Page links contain the filters of the request.
    let (_, page) = json_response(list_request(
        OWN_ORG,
        "tag=region:us1&limit=1&dispatcher=echo",
    ))
    .await;
    let link =
        "/api/cloud-connector/v2/connections?dispatcher=echo&limit=1&offset=0&tag=region%3Aus1";
    assert_eq!(page["links"]["first"], link);
}

async fn cursor_pages_return_every_connection_once(mode: DeploymentMode) {
    let fixture = ApiFixture::start(mode, &[]).await;
    // `OTHER_ORG` has two connected clients.
    let mut client_ids = [
        fixture.other_org_client_id.clone(),
        fixture.satellite_id.clone(),
    ];
    client_ids.sort_unstable();
    let first_page_path = "/connections?cursor=&limit=1";
    let (status, page) = json_response(fixture.v2_request(OTHER_ORG, "GET", first_page_path)).await;
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
    let next_page_path = page["links"]["next"].as_str().unwrap();
    let next_page_path = next_page_path
        .strip_prefix("/api/cloud-connector/v2")
        .unwrap();
    let (_, last) = json_response(fixture.v2_request(OTHER_ORG, "GET", next_page_path)).await;
    assert_eq!(last["data"][0]["client_id"], client_ids[1]);
    assert_eq!(
        (&last["meta"], &last["links"]["next"]),
        (&json!({}), &Value::Null)
    );
    let request_page_after = |cursor: &str| -> RequestBuilder {
        fixture.v2_request(
            OTHER_ORG,
            "GET",
            &format!("/connections?cursor={cursor}&limit=1000"),
        )
    };
    let connection_count = |page: Value| page["data"].as_array().unwrap().len();
    assert_eq!(
        connection_count(json_response(request_page_after("")).await.1),
        2
    );
    assert_eq!(
        connection_count(json_response(request_page_after("~")).await.1),
        0
    );
    assert_eq!(
        connection_count(json_response(request_page_after("%00")).await.1),
        2
    );
    // A new client whose id sorts before the cursor does not change the pages after the cursor.
    let new_client_id = &fixture.unconnected_client_id;
    let _new_client = connect_client(&fixture.deployment, new_client_id, "echo").await;
    let (_, all) = json_response(request_page_after("")).await;
    assert_eq!(all["data"][0]["client_id"], *new_client_id);
    assert_eq!(connection_count(all), 3);
    let (_, repeated) = json_response(fixture.v2_request(OTHER_ORG, "GET", next_page_path)).await;
    assert_eq!(repeated["data"], last["data"]);
}
