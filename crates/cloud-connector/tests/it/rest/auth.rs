//! Tests of authentication: API keys, the identity header, and access to management endpoints.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::RequestBuilder;
use serde_json::{Value, json};

use super::{
    ApiFixture, CALLER_SECRET, OK, OPERATIONS_SECRET, OTHER_ORG, OWN_ACCOUNT, OWN_ORG,
    json_response, plain_text_response, with_api_key,
};
use test_support::DeploymentMode;
use test_support::each_deployment;

each_deployment!(
    missing_or_wrong_credentials_return_401_without_a_reason,
    untrusted_identity_header_is_ignored,
    trusted_identity_header_selects_the_organization,
    invalid_identity_header_returns_400_with_the_reason,
    management_endpoints_accept_associates_and_keys_with_management_scope,
    response_contains_the_given_or_a_generated_request_id,
);

const TRUST_IDENTITY_HEADER: (&str, &str) = ("api.trust_identity_header", "true");
const UNAUTHORIZED_BODY: &str = "Authentication failed";

/// Method and path of endpoints that require the scope `tenant`.
const TENANT_ENDPOINTS: &[(&str, &str)] = &[
    ("GET", "/v2/connections"),
    ("GET", "/v2/connections/x/status"),
    ("POST", "/v2/connections/x/message"),
    ("POST", "/v1/message"),
    ("POST", "/v1/connection_status"),
];
/// Method and path of endpoints that require the scope `management`.
const MANAGEMENT_ENDPOINTS: &[(&str, &str)] = &[
    ("GET", "/v1/connection"),
    ("GET", "/v1/connection/010101"),
    ("POST", "/v1/connection/status"),
    ("POST", "/v1/connection/ping"),
    ("POST", "/v1/connection/reconnect"),
    ("POST", "/v1/connection/disconnect"),
];

/// Returns the value of the header `x-rh-identity` for an identity.
fn identity_header(identity: &Value) -> String {
    STANDARD.encode(json!({"identity": identity}).to_string())
}

/// Returns the value of the header `x-rh-identity` for a Red Hat employee. The identity type of
/// employees is `Associate`.
fn associate_header() -> String {
    identity_header(&json!({"type": "Associate", "auth_type": "saml-auth",
        "associate": {"email": "a@example.com"}}))
}

fn with_own_tenant_headers(request: RequestBuilder) -> RequestBuilder {
    request
        .header("x-rh-cloud-connector-org-id", OWN_ORG)
        .header("x-rh-cloud-connector-account", OWN_ACCOUNT)
}

async fn missing_or_wrong_credentials_return_401_without_a_reason(mode: DeploymentMode) {
    let fixture = ApiFixture::start(mode, &[]).await;
    for (method, path) in TENANT_ENDPOINTS.iter().chain(MANAGEMENT_ENDPOINTS) {
        let build_request = || fixture.deployment.unauthenticated_request(method, path);
        let is_management = MANAGEMENT_ENDPOINTS.contains(&(*method, *path));
        let (accepted_key, rejected_key) = if is_management {
            (("operations", OPERATIONS_SECRET), ("caller", CALLER_SECRET))
        } else {
            (("caller", CALLER_SECRET), ("operations", OPERATIONS_SECRET))
        };
        let mut requests = vec![
            build_request(),
            with_own_tenant_headers(build_request()),
            with_own_tenant_headers(with_api_key(build_request(), accepted_key.0, "wrong")),
            with_own_tenant_headers(with_api_key(build_request(), "unknown", accepted_key.1)),
            with_own_tenant_headers(with_api_key(build_request(), "", "")),
            // This API key is valid, but does not have the required scope.
            with_own_tenant_headers(with_api_key(
                build_request(),
                rejected_key.0,
                rejected_key.1,
            )),
            with_own_tenant_headers(build_request().header("x-rh-identity", associate_header())),
        ];
        if !is_management {
            requests.push(with_api_key(
                build_request(),
                accepted_key.0,
                accepted_key.1,
            ));
        }
        for request in requests {
            assert_eq!(
                plain_text_response(request).await,
                (401, UNAUTHORIZED_BODY.to_owned()),
                "{method} {path}"
            );
        }
    }
}

async fn untrusted_identity_header_is_ignored(mode: DeploymentMode) {
    let fixture = ApiFixture::start(mode, &[]).await;
    let own_identity = identity_header(&json!({"type": "User", "org_id": OWN_ORG}));
    let request = fixture
        .deployment
        .unauthenticated_request("GET", "/v2/connections");
    let request = request.header("x-rh-identity", &own_identity);
    assert_eq!(plain_text_response(request).await.0, 401);
    // This request has an API key and selects `OWN_ORG`. The untrusted identity header contains
    // another organization, but has no effect.
    let other_identity = identity_header(&json!({"type": "User", "org_id": OTHER_ORG}));
    let request = fixture.v2_request(OWN_ORG, "GET", "/connections");
    let (status, page) = json_response(request.header("x-rh-identity", other_identity)).await;
    assert_eq!((status, &page["data"][0]["org_id"]), (OK, &json!(OWN_ORG)));
}

async fn trusted_identity_header_selects_the_organization(mode: DeploymentMode) {
    let fixture = ApiFixture::start(mode, &[TRUST_IDENTITY_HEADER]).await;
    for identity in [
        json!({"type": "User", "org_id": OWN_ORG, "account_number": OWN_ACCOUNT}),
        json!({"type": "System", "internal": {"org_id": OWN_ORG}, "account_number": OWN_ACCOUNT}),
        json!({"type": "User", "org_id": OWN_ORG, "internal": {"org_id": OTHER_ORG},
            "account_number": OWN_ACCOUNT}),
    ] {
        let header = identity_header(&identity);
        let request = fixture
            .deployment
            .unauthenticated_request("GET", "/v2/connections");
        let (status, page) = json_response(request.header("x-rh-identity", &header)).await;
        assert_eq!(status, OK);
        assert_eq!(page["data"][0]["client_id"], fixture.own_org_client_id);
        assert_eq!(page["meta"]["count"], 1);
        let body = json!({"account": OWN_ACCOUNT, "node_id": fixture.own_org_client_id});
        let request = fixture
            .deployment
            .unauthenticated_request("POST", "/v1/connection_status");
        let request = request.header("x-rh-identity", &header).json(&body);
        assert_eq!(json_response(request).await.1["status"], "connected");
    }
    // The API also accepts an API key together with an empty identity header.
    let request = fixture.v2_request(OWN_ORG, "GET", "/connections");
    assert_eq!(
        json_response(request.header("x-rh-identity", "")).await.0,
        OK
    );
}

async fn invalid_identity_header_returns_400_with_the_reason(mode: DeploymentMode) {
    let fixture = ApiFixture::start(mode, &[TRUST_IDENTITY_HEADER]).await;
    let missing_org_reason = "x-rh-identity header has an invalid or missing org_id";
    for (header, reason) in [
        ("%".to_owned(), "unable to b64 decode x-rh-identity header"),
        (
            STANDARD.encode("{"),
            "x-rh-identity header does not contain valid JSON: ",
        ),
        (
            identity_header(&json!({"type": "User"})),
            missing_org_reason,
        ),
        (associate_header(), missing_org_reason),
        (
            identity_header(&json!({"type": "X509"})),
            missing_org_reason,
        ),
        (
            identity_header(&json!({"org_id": OWN_ORG})),
            "x-rh-identity header is missing type",
        ),
    ] {
        for (method, path) in TENANT_ENDPOINTS {
            let request = fixture.deployment.unauthenticated_request(method, path);
            // The invalid identity header takes precedence over the valid API key.
            let request = with_own_tenant_headers(with_api_key(request, "caller", CALLER_SECRET));
            let (status, text) =
                plain_text_response(request.header("x-rh-identity", &header)).await;
            assert_eq!(status, 400, "{method} {path} {text}");
            let expected = format!("Bad Request: {reason}");
            assert!(text.starts_with(&expected), "{method} {path} {text}");
        }
    }
}

async fn management_endpoints_accept_associates_and_keys_with_management_scope(
    mode: DeploymentMode,
) {
    let fixture = ApiFixture::start(mode, &[TRUST_IDENTITY_HEADER]).await;
    let build_request = |header: String| {
        let request = fixture
            .deployment
            .unauthenticated_request("GET", "/v1/connection");
        request.header("x-rh-identity", header)
    };
    assert_eq!(json_response(build_request(associate_header())).await.0, OK);
    let associate_with_org =
        json!({"type": "Associate", "org_id": OWN_ORG, "account_number": OWN_ACCOUNT});
    assert_eq!(
        json_response(build_request(identity_header(&associate_with_org)))
            .await
            .0,
        OK
    );
    assert_eq!(
        json_response(fixture.management_request("GET", "/connection"))
            .await
            .0,
        OK
    );
    for identity_type in ["User", "System", "X509", "ServiceAccount"] {
        let header = identity_header(&json!({"type": identity_type, "org_id": OWN_ORG}));
        assert_eq!(
            plain_text_response(build_request(header)).await,
            (401, UNAUTHORIZED_BODY.to_owned())
        );
    }
}

async fn response_contains_the_given_or_a_generated_request_id(mode: DeploymentMode) {
    let fixture = ApiFixture::start(mode, &[]).await;
    let header = "x-rh-insights-request-id";
    let request = fixture
        .v2_request(OWN_ORG, "GET", "/connections")
        .header(header, "caller-request-1");
    let response = request.send().await.unwrap();
    assert_eq!(response.headers()[header], "caller-request-1");
    let request = fixture
        .deployment
        .unauthenticated_request("GET", "/v2/connections");
    let response = request.send().await.unwrap();
    assert_eq!(response.headers()[header].len(), 32);
}
