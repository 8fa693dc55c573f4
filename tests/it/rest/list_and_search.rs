//! Lists: those whom filters name, and pages by cursor.

use reqwest::RequestBuilder;
use serde_json::{Value, json};

use super::{ApiFixture, OK, THEM, US, answered, error};
use crate::each_deployment;
use crate::support::mqtt::{Connect, RawClient, control_out, online};
use crate::support::{Deployment, eventually};

each_deployment!(
    filters_name_those_that_are_wanted,
    a_cursor_leads_through_all_pages_and_ends_after_the_last,
);

const REPORTED: &str = "3f1c7a52-0000-4000-8000-00000000000a";

/// Ours says more of itself.
async fn speak(world: &mut ApiFixture) {
    let mut said = online();
    said["content"]["canonical_facts"] = json!({"insights_id": REPORTED, "fqdn": "Web1.example.com",
        "ip_addresses": ["10.1.2.3"], "rack": "B7"});
    said["content"]["dispatchers"] = json!({"rhc_worker_playbook": {}, "echo": {}});
    said["content"]["tags"] = json!({"region": "us1", "tier": "a:b"});
    world
        .client
        .must_publish(&control_out(&world.ours), &said)
        .await;
    let asked = "/connections?tag=region:us1";
    eventually("the new words", || async {
        let (_, list) = answered(world.v2(US.0, "GET", asked)).await;
        (list["meta"]["count"] == 1).then_some(())
    })
    .await;
}

async fn filters_name_those_that_are_wanted(subject: Deployment) {
    let mut world = ApiFixture::start(subject, &[]).await;
    speak(&mut world).await;
    let list = |org: &str, query: &str| world.v2(org, "GET", &format!("/connections?{query}"));
    let bare = REPORTED.replace('-', "").to_uppercase();
    let (start, insights) = (&world.ours[..4], format!("insights_id={bare}"));
    for hit in [
        "dispatcher=echo",
        "dispatcher=rhc-worker-playbook",
        "tag=region:us1",
        "tag=tier:a:b",
        "tag=region:us1&tag=tier:a%3Ab&dispatcher=echo",
        "fqdn=web1.EXAMPLE.com",
        &insights,
        "ip_addresses=10.1.2.3",
        "fact=rack:b7",
        "search=web1",
        &format!("search={start}"),
        "fqdn=&tag=&dispatcher=&search=",
    ] {
        let (status, found) = answered(list(US.0, hit)).await;
        assert_eq!((status, &found["meta"]["count"]), (OK, &json!(1)), "{hit}");
        assert_eq!(found["data"][0]["client_id"], world.ours, "{hit}");
    }
    for miss in [
        "dispatcher=playbook",
        "tag=region:us",
        "tag=region:us1&tag=region:us2",
        "fqdn=web1",
        "machine_id=x",
        "search=eb1",
        "search=%25",
        "fact=rack:B7%00",
    ] {
        let (status, found) = answered(list(US.0, miss)).await;
        let empty = json!({"meta": {"count": 0}, "links": {}, "data": []});
        assert_eq!((status, found), (OK, empty), "{miss}");
    }
    for bad in ["tag=region", "fact=x", &"tag=a:b&".repeat(17)] {
        let refused = error(list(US.0, bad)).await;
        assert_eq!(refused, (400, "InvalidValue request".to_owned()), "{bad}");
    }
    // HandshakeSegments of others find nobody of ours, and ours nobody of theirs.
    let (_, theirs) = answered(list(THEM.0, "tag=region:us1")).await;
    assert_eq!(theirs["meta"]["count"], 0);
    let (_, theirs) = answered(list(THEM.0, "dispatcher=foreman-rh-cloud")).await;
    assert_eq!(theirs["data"][0]["client_id"], world.satellite);
    // Links keep the filters.
    let (_, page) = answered(list(US.0, "tag=region:us1&limit=1&dispatcher=echo")).await;
    let link =
        "/api/cloud-connector/v2/connections?dispatcher=echo&limit=1&offset=0&tag=region%3Aus1";
    assert_eq!(page["links"]["first"], link);
}

async fn a_cursor_leads_through_all_pages_and_ends_after_the_last(subject: Deployment) {
    let world = ApiFixture::start(subject, &[]).await;
    // Theirs are two.
    let mut names = [world.theirs.clone(), world.satellite.clone()];
    names.sort_unstable();
    let first = "/connections?cursor=&limit=1";
    let (status, page) = answered(world.v2(THEM.0, "GET", first)).await;
    assert_eq!(status, OK);
    let path = "/api/cloud-connector/v2/connections";
    let expected = json!({
        "meta": {"cursor": names[0]},
        "links": {"first": format!("{path}?cursor=&limit=1"), "next": format!("{path}?cursor={}&limit=1", names[0])},
        "data": page["data"],
    });
    assert_eq!(page, expected);
    assert_eq!(page["data"][0]["client_id"], names[0]);
    let next = page["links"]["next"].as_str().unwrap();
    let next = next.strip_prefix("/api/cloud-connector/v2").unwrap();
    let (_, last) = answered(world.v2(THEM.0, "GET", next)).await;
    assert_eq!(last["data"][0]["client_id"], names[1]);
    assert_eq!(
        (&last["meta"], &last["links"]["next"]),
        (&json!({}), &Value::Null)
    );
    let after = |cursor: &str| -> RequestBuilder {
        world.v2(
            THEM.0,
            "GET",
            &format!("/connections?cursor={cursor}&limit=1000"),
        )
    };
    let count = |page: Value| page["data"].as_array().unwrap().len();
    assert_eq!(count(answered(after("")).await.1), 2);
    assert_eq!(count(answered(after("~")).await.1), 0);
    assert_eq!(count(answered(after("%00")).await.1), 2);
    // Whoever comes while pages are turned moves nobody to another page.
    let early = format!("!{}", names[0]);
    let mut client = RawClient::connect(&world.subject.mqtt(), &Connect::new(&early)).await;
    client.must_publish(&control_out(&early), &online()).await;
    eventually("its row", || world.subject.row(&early)).await;
    let (_, same) = answered(world.v2(THEM.0, "GET", next)).await;
    assert_eq!(same["data"], last["data"]);
}
