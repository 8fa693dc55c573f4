//! Builds the OpenAPI document and the router from the same list of endpoints. Therefore the
//! document describes every endpoint.
//!
//! [`document_group`] adds the documentation that all endpoints of a group share: tag, credentials
//! and common error responses. The documentation of a single endpoint belongs to the endpoint's
//! file.

use axum::Router;
use utoipa::PartialSchema as _;
use utoipa::openapi::extensions::Extensions;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{Operation, Parameter, ParameterIn, PathItem};
use utoipa::openapi::request_body::RequestBody;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, SecurityRequirement, SecurityScheme};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, InfoBuilder, License, Object, OpenApi, OpenApiBuilder, Ref,
    RefOr, Response, ResponseBuilder, Schema, Server, Type,
};
use utoipa_axum::router::UtoipaMethodRouter;

use super::auth::{ACCOUNT_HEADER, CLIENT_ID_HEADER, IDENTITY_HEADER, ORG_ID_HEADER, PSK_HEADER};
use super::error::ApiError;
use super::{SharedState, v1, v2};

const API_DESCRIPTION: &str = "\
Lists connected clients and sends messages to them.

Every JSON response has the content type `application/json; charset=UTF-8`. Every response has the \
header `x-rh-insights-request-id`, with the caller's value or a generated one.

Unknown fields in a request body are ignored.";

/// An endpoint: a request handler with its OpenAPI description. The macro `routes!` creates an
/// endpoint.
pub(super) type Endpoint = UtoipaMethodRouter<SharedState>;

/// A group of endpoints with the same API version and the same kind of caller.
#[derive(Debug, Clone, Copy)]
pub(super) enum EndpointGroup {
    /// v2 endpoints, called on behalf of an organization.
    V2Tenant,
    /// v2 endpoints for operators. These endpoints may access the clients of any tenant, and clients
    /// without a tenant.
    V2Management,
    /// v1 endpoints, called on behalf of an account.
    V1Tenant,
    /// v1 endpoints for operators. These endpoints may access the connections of any tenant.
    V1Management,
}

impl EndpointGroup {
    const ALL: [Self; 4] = [
        Self::V2Tenant,
        Self::V2Management,
        Self::V1Tenant,
        Self::V1Management,
    ];

    fn tag(self) -> &'static str {
        match self {
            Self::V2Tenant => "v2",
            Self::V2Management => "v2 management",
            Self::V1Tenant => "v1",
            Self::V1Management => "v1 management",
        }
    }

    fn description(self) -> &'static str {
        match self {
            Self::V2Tenant => "Endpoints for the connections of one organization.",
            Self::V2Management => {
                "Endpoints for operators and support, for clients of any organization and clients \
                 that belong to no organization. They require a key with the scope `management`, or \
                 an identity of type `Associate`. Each request is written to the audit log."
            }
            Self::V1Tenant => {
                "Endpoints for existing v1 callers. An account number identifies the tenant."
            }
            Self::V1Management => {
                "Endpoints for operators, for connections of any tenant. They require a key with \
                 the scope `management`, or an identity of type `Associate`. Each request is \
                 written to the audit log."
            }
        }
    }

    /// Returns the two accepted sets of credentials: a key with its headers, or an identity.
    fn security_requirements(self) -> Vec<SecurityRequirement> {
        let no_scopes: [&str; 0] = [];
        let key = SecurityRequirement::new("client-id", no_scopes).add("psk", no_scopes);
        let key = match self {
            Self::V2Tenant => key.add("org-id", no_scopes),
            Self::V1Tenant => key.add("account", no_scopes),
            Self::V2Management | Self::V1Management => key,
        };
        vec![key, SecurityRequirement::new("identity", no_scopes)]
    }

    /// Adds the group's tag, credentials and common error responses to an operation.
    fn add_shared_docs(self, operation: &mut Operation) {
        operation.tags = Some(vec![self.tag().to_owned()]);
        operation.security = Some(self.security_requirements());
        let has_body = operation.request_body.is_some();
        if let Some(body) = &mut operation.request_body {
            remove_null_alternative(body);
        }
        let mut has_query = false;
        for parameter in query_parameters(operation) {
            has_query = true;
            // Every query parameter may be empty. The attribute `param` has no option for
            // `allowEmptyValue`, so this code adds `allowEmptyValue` to the document.
            parameter.extensions = Some(Extensions::from_iter([("allowEmptyValue", true)]));
        }
        let bad_request_name = if has_body || has_query {
            "BadRequest"
        } else {
            "InvalidIdentity"
        };
        let shared_responses = [
            ("400", Some(bad_request_name)),
            ("401", Some("Unauthenticated")),
            ("408", has_body.then_some("BodyTimeout")),
            ("413", has_body.then_some("BodyTooLarge")),
            ("429", Some("RateLimited")),
            ("503", Some("Unavailable")),
        ];
        for (status, response_name) in shared_responses {
            if let Some(response_name) = response_name {
                let responses = &mut operation.responses.responses;
                responses
                    .entry(status.to_owned())
                    .or_insert_with(|| Ref::from_response_name(response_name).into());
            }
        }
    }
}

/// Adds the group's shared documentation to each endpoint.
pub(super) fn document_group<const N: usize>(
    group: EndpointGroup,
    endpoints: [Endpoint; N],
) -> Vec<Endpoint> {
    let documented_endpoints = endpoints.map(|(schemas, mut paths, handler)| {
        let operations = paths.paths.values_mut().flat_map(operations);
        operations.for_each(|operation| group.add_shared_docs(operation));
        (schemas, paths, handler)
    });
    documented_endpoints.into()
}

/// Removes `null` from the schema of an optional request body.
///
/// utoipa describes an optional body as "`null` or the schema". But a body of `null` is an error. A
/// caller that does not need the body must omit the body.
fn remove_null_alternative(body: &mut RefOr<RequestBody>) {
    let RefOr::T(body) = body else { return };
    for content in body.content.values_mut() {
        if let RefOr::T(content) = content
            && let Some(RefOr::T(Schema::OneOf(alternatives))) = &content.schema
            && let Some(body_schema) = alternatives
                .items
                .iter()
                .find(|item| matches!(item, RefOr::Ref(_)))
        {
            content.schema = Some(body_schema.clone());
        }
    }
}

fn query_parameters(operation: &mut Operation) -> impl Iterator<Item = &mut Parameter> {
    let parameters = operation.parameters.iter_mut().flatten();
    parameters.filter_map(|parameter| match parameter {
        RefOr::T(parameter) if parameter.parameter_in == ParameterIn::Query => Some(parameter),
        _ => None,
    })
}

fn operations(path_item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let PathItem {
        get,
        put,
        post,
        delete,
        patch,
        ..
    } = path_item;
    [get, put, post, delete, patch].into_iter().flatten()
}

/// The router of all endpoints, and the OpenAPI document that describes the endpoints.
pub(super) struct DocumentedRouter {
    pub router: Router<SharedState>,
    pub document: OpenApi,
}

/// Builds the router and the OpenAPI document of all endpoints of v1 and v2.
///
/// The router contains the full path of each endpoint, because nested routers would make every
/// request slower.
pub(super) fn documented_router(base_path: &str) -> DocumentedRouter {
    let mut document = document_without_endpoints(base_path);
    let mut router = Router::new();
    for (version_path, endpoints) in [("/v1", v1::endpoints()), ("/v2", v2::endpoints())] {
        for (schemas, paths, handler) in endpoints {
            for (path, item) in paths.paths {
                let path = format!("{version_path}{path}");
                router = router.route(&format!("{base_path}{path}"), handler.clone());
                document.paths.paths.insert(path, item);
            }
            let components = document.components.get_or_insert_default();
            components.schemas.extend(schemas);
        }
    }
    DocumentedRouter { router, document }
}

/// Returns the OpenAPI document as JSON. The file `openapi.json` in the repository is a copy of
/// this JSON.
#[must_use]
pub fn openapi_json(base_path: &str) -> String {
    to_json(&documented_router(base_path).document)
}

/// Serializes the OpenAPI document as indented JSON.
pub(super) fn to_json(document: &OpenApi) -> String {
    let json = document.to_pretty_json();
    json.expect("an OpenAPI document always serializes to JSON") + "\n"
}

/// Creates the OpenAPI document without the endpoints.
fn document_without_endpoints(base_path: &str) -> OpenApi {
    let info = InfoBuilder::new()
        .title("Cloud Connector")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(API_DESCRIPTION))
        .license(Some(License::new(env!("CARGO_PKG_LICENSE"))));
    let tags = EndpointGroup::ALL.map(|group| {
        let tag = TagBuilder::new().description(Some(group.description()));
        tag.name(group.tag()).build()
    });
    let mut components = ComponentsBuilder::new()
        .schema("Error", ApiError::schema())
        .responses_from_iter(common_responses());
    for (name, scheme) in security_schemes() {
        components = components.security_scheme(name, scheme);
    }
    OpenApiBuilder::new()
        .info(info.build())
        .servers(Some([Server::new(base_path)]))
        .tags(Some(tags))
        .components(Some(components.build()))
        .build()
}

fn security_schemes() -> [(&'static str, SecurityScheme); 5] {
    [
        (
            "client-id",
            CLIENT_ID_HEADER,
            "Name of the caller's pre-shared key.",
        ),
        ("psk", PSK_HEADER, "Secret of the pre-shared key."),
        (
            "org-id",
            ORG_ID_HEADER,
            "Organization that the caller acts for.",
        ),
        (
            "account",
            ACCOUNT_HEADER,
            "Account number that the caller acts for.",
        ),
        (
            "identity",
            IDENTITY_HEADER,
            "Base64 of the identity JSON that a gateway in front of this service sets. Ignored \
             unless the service is configured to trust it. A trusted identity takes precedence \
             over a key.",
        ),
    ]
    .map(|(name, header, description)| {
        let key = ApiKeyValue::with_description(header, description);
        (name, SecurityScheme::ApiKey(ApiKey::Header(key)))
    })
}

/// Returns the error responses that the endpoints share, with their names in the OpenAPI document.
fn common_responses() -> [(&'static str, Response); 7] {
    [
        (
            "BadRequest",
            ResponseBuilder::new()
                .description("The request is invalid (JSON), or the identity is invalid (text).")
                .content("application/json", error_content())
                .content("text/plain", text_content()),
        ),
        (
            "InvalidIdentity",
            ResponseBuilder::new()
                .description("The identity is invalid.")
                .content("text/plain", text_content()),
        ),
        (
            "Unauthenticated",
            ResponseBuilder::new()
                .description("`Authentication failed`. The response never names the reason.")
                .content("text/plain", text_content()),
        ),
        (
            "BodyTimeout",
            ResponseBuilder::new()
                .description("The request body was not received in time.")
                .content("application/json", error_content()),
        ),
        (
            "BodyTooLarge",
            ResponseBuilder::new()
                .description("The request body exceeds the size limit (1 MiB by default).")
                .content("application/json", error_content()),
        ),
        (
            "RateLimited",
            ResponseBuilder::new()
                .description(
                    "The rate limit of the key or the organization is exceeded, or authentication \
                     failed too often.",
                )
                .header("Retry-After", retry_after_header())
                .content("application/json", error_content()),
        ),
        (
            "Unavailable",
            ResponseBuilder::new()
                .description(
                    "The database, the MQTT broker or the account translation service is \
                     unavailable.",
                )
                .header("Retry-After", retry_after_header())
                .content("application/json", error_content()),
        ),
    ]
    .map(|(name, response)| (name, response.build()))
}

fn error_content() -> utoipa::openapi::Content {
    let schema = Ref::from_schema_name("Error");
    ContentBuilder::new().schema(Some(schema)).build()
}

fn text_content() -> utoipa::openapi::Content {
    let schema = Object::with_type(Type::String);
    ContentBuilder::new().schema(Some(schema)).build()
}

fn retry_after_header() -> utoipa::openapi::header::Header {
    HeaderBuilder::new()
        .schema(Some(Object::with_type(Type::Integer)))
        .description(Some("Number of seconds to wait before a retry."))
        .build()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    const BASE_PATH: &str = "/api/cloud-connector";

    fn documented_operations() -> Vec<Value> {
        let document: Value = serde_json::from_str(&openapi_json(BASE_PATH)).unwrap();
        let paths = document["paths"].as_object().unwrap().values();
        let operations = paths.flat_map(|path| path.as_object().unwrap().values());
        operations.cloned().collect()
    }

    #[test]
    fn openapi_json_in_the_repository_is_current() {
        let committed_json = include_str!("../../../openapi.json");
        assert!(
            committed_json == openapi_json(BASE_PATH),
            "openapi.json is out of date; run `make openapi`"
        );
    }

    #[test]
    fn every_operation_has_a_unique_id_a_summary_and_the_common_errors() {
        let mut operation_ids = BTreeSet::new();
        for operation in documented_operations() {
            let operation_id = operation["operationId"].as_str().unwrap().to_owned();
            assert!(operation["summary"].is_string(), "{operation_id}");
            assert!(operation["security"].is_array(), "{operation_id}");
            for status in ["400", "401", "429", "503"] {
                let response = &operation["responses"][status];
                assert!(response.is_object(), "{operation_id} {status}");
            }
            assert!(
                operation_ids.insert(operation_id.clone()),
                "duplicate id {operation_id}"
            );
        }
        for operation_id in [
            "v1.connection.status",
            "v1.connection.status.multiorg",
            "v2.connection.status.multiorg",
        ] {
            assert!(
                operation_ids.contains(operation_id),
                "operation id {operation_id} is missing, but existing callers use it"
            );
        }
    }

    #[test]
    fn every_schema_reference_in_the_document_resolves() {
        let json = openapi_json(BASE_PATH);
        let document: Value = serde_json::from_str(&json).unwrap();
        let references = json.split("\"$ref\": \"#").skip(1);
        for reference in references.map(|rest| rest.split('"').next().unwrap()) {
            assert!(document.pointer(reference).is_some(), "{reference}");
        }
    }

    #[test]
    fn paths_in_the_document_are_relative_to_the_base_path() {
        let document: Value = serde_json::from_str(&openapi_json("/elsewhere")).unwrap();
        assert_eq!(document["servers"][0]["url"], "/elsewhere");
        assert!(document["paths"]["/v2/connections"].is_object());
    }
}
