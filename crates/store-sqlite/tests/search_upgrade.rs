//! Filters find clients that were recorded before the signatures existed.

use domain::{ClientId, ClientInfo, ClientKind, DialectName, OrgId, Tenant, Timestamp};
use serde_json::json;
use store::{
    ConnectionUpsert, PageRequest, PresenceBatch, PresenceColumns, ReceivedAt, ReplacedRow,
    TenantChange,
};

#[tokio::test]
async fn filters_find_clients_without_a_signature() {
    let store = test_support::stores::open_sqlite().await;
    let org_id = OrgId::new("1").unwrap();
    let upsert = ConnectionUpsert {
        client_id: ClientId::new("a").unwrap(),
        dialect: DialectName::from("status".to_owned()),
        kind: ClientKind::Host,
        topic_prefix: "redhat/insights".into(),
        info: ClientInfo {
            canonical_facts: json!({"fqdn": "Web1.example.com"}),
            dispatchers: json!({"echo": {}}),
            tags: json!({"region": "us1"}),
            ..ClientInfo::default()
        },
        message_id: None,
        message_sent_at: Timestamp::UNIX_EPOCH,
        received_at: ReceivedAt::from_time(Timestamp::UNIX_EPOCH),
        last_heartbeat_at: None,
        tenant: TenantChange::Found(Tenant {
            org_id: org_id.clone(),
            account: String::new(),
        }),
        inventory_eligible: true,
        reported_to_inventory_at: None,
        replaced: ReplacedRow::Any,
        presence: PresenceColumns::default(),
    };
    let batch = PresenceBatch {
        upserts: vec![upsert],
        ..PresenceBatch::default()
    };
    let now = Timestamp::UNIX_EPOCH;
    store.presence.record_batch(&batch, &[], now).await.unwrap();
    let find = async || {
        let mut request = PageRequest::at_offset(0, 10);
        request.filter.require_fact("fqdn", "web1.example.com");
        request.filter.require_tag("region", "us1");
        request.filter.require_dispatcher("echo");
        request.filter.require_prefix("web1.exam");
        let page = store
            .connections
            .list_connections_for_org(&org_id, &request);
        let page = page.await.unwrap();
        (page.total_count, page.connections.len())
    };
    // The values that the migration gives to existing rows.
    let remove = "UPDATE connections SET search_signature_1 = -1, search_signature_2 = -1";
    store.execute(remove).await;
    assert_eq!(find().await, (1, 1));
    store.presence.record_batch(&batch, &[], now).await.unwrap();
    assert_eq!(find().await, (1, 1));
    // Without the bits, the filter does not read the row. So the test above depends on the signature.
    let no_bits = "UPDATE connections SET search_signature_1 = 0, search_signature_2 = 0";
    store.execute(no_bits).await;
    assert_eq!(find().await, (0, 0));
}
