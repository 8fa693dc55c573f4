//! Inventory hears of hosts that come online: in its topic, or in a file.

use serde_json::{Value, json};

use crate::each_deployment;
use crate::support::mqtt::{Connect, RawClient, control_out, online};
use crate::support::{Deployment, eventually, unique};

each_deployment!(
    a_host_that_comes_online_is_announced,
    who_belongs_to_nobody_is_not_announced with &[("tenant.default_org_id", "")],
    who_has_no_worker_for_it_is_not_announced,
);

/// An online of a host that inventory would take.
fn host() -> Value {
    let mut online = online();
    online["content"]["canonical_facts"] = json!({
        "insights_id": "cabb61b6e61d4d70b47501f5c009e93c", "fqdn": "a.example",
        "mac_addresses": ["00:00:00:00:00:00"], "machine_id": "",
    });
    online["content"]["dispatchers"] = json!({"rhc_worker_playbook": {}});
    online["content"]["tags"] = json!({"region": "us1"});
    online
}

async fn a_host_that_comes_online_is_announced(subject: Deployment) {
    let me = uuid::Uuid::new_v4().to_string();
    let mut client = RawClient::connect(&subject.mqtt(), &Connect::new(&me)).await;
    client.must_publish(&control_out(&me), &host()).await;
    subject.wait_for(&me, true).await;
    let heard = eventually("inventory hears of it", || async {
        let all = subject.inventory().await;
        all.into_iter()
            .find(|told| told["data"]["system_profile"]["rhc_client_id"] == *me)
    })
    .await;
    assert_eq!(heard["operation"], "add_host");
    let data = &heard["data"];
    assert_eq!(data["org_id"], "10000");
    assert_eq!(data["account"], "111000");
    assert_eq!(data["reporter"], "cloud-connector");
    assert_eq!(data["insights_id"], "cabb61b6-e61d-4d70-b475-01f5c009e93c");
    assert_eq!(data.get("mac_addresses"), None);
    assert_eq!(data["tags"], json!({"rhc_client": {"region": ["us1"]}}));
    let stale: jiff::Timestamp = data["stale_timestamp"].as_str().unwrap().parse().unwrap();
    let ahead = stale.duration_since(jiff::Timestamp::now()).as_hours();
    assert!((25..=26).contains(&ahead), "{stale}");
    // Another message is told, too; the same one again is not.
    let before = subject.inventory().await.len();
    let mut another = host();
    another["message_id"] = json!("another");
    for _ in 0..3 {
        client.must_publish(&control_out(&me), &another).await;
    }
    let mut last = host();
    last["content"]["tags"] = json!({"region": "last"});
    client.must_publish(&control_out(&me), &last).await;
    let all = eventually("the last one", || async {
        let all = subject.inventory().await;
        let told = |told: &Value| told["data"]["tags"]["rhc_client"]["region"][0] == "last";
        all.iter().any(told).then_some(all)
    })
    .await;
    assert!(all.len() <= before + 2, "{} more", all.len() - before);
}

async fn who_belongs_to_nobody_is_not_announced(subject: Deployment) {
    let me = unique("nobodys");
    let mut client = RawClient::connect(&subject.mqtt(), &Connect::new(&me)).await;
    client.must_publish(&control_out(&me), &host()).await;
    recorded(&subject, 1.0).await;
    assert!(subject.inventory().await.is_empty());
}

async fn who_has_no_worker_for_it_is_not_announced(subject: Deployment) {
    let me = unique("worker");
    let mut client = RawClient::connect(&subject.mqtt(), &Connect::new(&me)).await;
    let mut other = host();
    other["content"]["dispatchers"] = json!({"echo": {}});
    client.must_publish(&control_out(&me), &other).await;
    subject.wait_for(&me, true).await;
    assert!(subject.inventory().await.is_empty());
}

#[cfg(feature = "external-services")]
#[tokio::test]
async fn an_inventory_that_is_away_holds_nobody_up() {
    let subject = Deployment::distributed(&[("inventory.topic", "nowhere")]).await;
    let me = unique("away");
    let mut client = RawClient::connect(&subject.mqtt(), &Connect::new(&me)).await;
    client.must_publish(&control_out(&me), &host()).await;
    subject.wait_for(&me, true).await;
    let missed = subject
        .metric("cloud_connector_inventory_messages_total", "not_delivered")
        .await;
    assert!(missed > 0.5, "{missed}");
}

async fn recorded(subject: &Deployment, count: f64) {
    eventually("it is recorded", || async {
        let recorded = "cloud_connector_messages_applied_total";
        (subject.metric(recorded, "online").await > count - 0.5).then_some(())
    })
    .await;
}
