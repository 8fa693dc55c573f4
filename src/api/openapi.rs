//! The OpenAPI document. It is made from the endpoints: [`group`] is the only way into the interface,
//! and takes an endpoint's path, method and description from one annotation. What all of a group
//! share (who may call, how they are refused) is said here, once.

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

use super::auth::{ACCOUNT, CLIENT_ID, IDENTITY, ORG_ID, PSK};
use super::error::ApiError;
use super::{SharedState, v1, v2};

const ABOUT: &str = "\
Finds out which machines are connected and sends messages to them.

Every JSON answer is `application/json; charset=UTF-8`. Every answer carries \
`x-rh-insights-request-id`: the caller's, or one that was made.

In a request's body, fields that are not described are ignored.";

/// An endpoint with its description, as `routes!` makes it.
pub(super) type Endpoint = UtoipaMethodRouter<SharedState>;

/// Who calls the endpoints of a group, and on whose behalf.
#[derive(Debug, Clone, Copy)]
pub(super) enum Callers {
    /// For an organisation.
    Organisations,
    /// For an account, as the first generation names tenants.
    Accounts,
    /// For the service's operators, on connections of any tenant.
    Management,
}

impl Callers {
    const ALL: [Self; 3] = [Self::Organisations, Self::Accounts, Self::Management];

    fn tag(self) -> &'static str {
        match self {
            Self::Organisations => "v2",
            Self::Accounts => "v1",
            Self::Management => "v1 management",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Self::Organisations => "What an organisation does with its own connections.",
            Self::Accounts => {
                "The first generation, for callers that know it. Tenants are account numbers."
            }
            Self::Management => {
                "Connections of any tenant, for operators: a key with the scope `management`, or an \
                 identity of type `Associate`. Each use leaves a line in the audit."
            }
        }
    }

    /// The headers of a key go together; an identity stands alone.
    fn security(self) -> Vec<SecurityRequirement> {
        let none: [&str; 0] = [];
        let key = SecurityRequirement::new("client-id", none).add("psk", none);
        let key = match self {
            Self::Organisations => key.add("org-id", none),
            Self::Accounts => key.add("account", none),
            Self::Management => key,
        };
        vec![key, SecurityRequirement::new("identity", none)]
    }

    /// Adds what the endpoints of the group share.
    fn complete(self, operation: &mut Operation) {
        operation.tags = Some(vec![self.tag().to_owned()]);
        operation.security = Some(self.security());
        let has_body = operation.request_body.is_some();
        if let Some(body) = &mut operation.request_body {
            without_null(body);
        }
        let mut has_query = false;
        for parameter in query_parameters(operation) {
            has_query = true;
            // None of them is refused for being empty. The attribute has no word for it.
            parameter.extensions = Some(Extensions::from_iter([("allowEmptyValue", true)]));
        }
        let bad = if has_body || has_query {
            "BadRequest"
        } else {
            "BadIdentity"
        };
        let shared = [
            ("400", Some(bad)),
            ("401", Some("Unauthenticated")),
            ("408", has_body.then_some("BodyTimeout")),
            ("413", has_body.then_some("TooLarge")),
            ("429", Some("TooMany")),
            ("503", Some("Unavailable")),
        ];
        for (status, name) in shared {
            if let Some(name) = name {
                let responses = &mut operation.responses.responses;
                responses
                    .entry(status.to_owned())
                    .or_insert_with(|| Ref::from_response_name(name).into());
            }
        }
    }
}

/// Endpoints that the same callers use.
pub(super) fn group<const N: usize>(callers: Callers, endpoints: [Endpoint; N]) -> Vec<Endpoint> {
    let completed = endpoints.map(|(schemas, mut paths, handler)| {
        let operations = paths.paths.values_mut().flat_map(operations);
        operations.for_each(|operation| callers.complete(operation));
        (schemas, paths, handler)
    });
    completed.into()
}

/// A body that may be left out may still not be `null`, as the attribute has it.
fn without_null(body: &mut RefOr<RequestBody>) {
    let RefOr::T(body) = body else { return };
    for content in body.content.values_mut() {
        if let RefOr::T(content) = content
            && let Some(RefOr::T(Schema::OneOf(either))) = &content.schema
            && let Some(described) = either
                .items
                .iter()
                .find(|item| matches!(item, RefOr::Ref(_)))
        {
            content.schema = Some(described.clone());
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

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let PathItem {
        get,
        put,
        post,
        delete,
        patch,
        ..
    } = item;
    [get, put, post, delete, patch].into_iter().flatten()
}

/// The interface, and the document that describes it.
pub(super) struct DocumentedRouter {
    pub router: Router<SharedState>,
    pub document: OpenApi,
}

/// Both generations. Each endpoint is routed by its whole path: routers within routers would be walked
/// with every request.
pub(super) fn described(base_path: &str) -> DocumentedRouter {
    let mut document = head(base_path);
    let mut router = Router::new();
    for (generation, endpoints) in [("/v1", v1::endpoints()), ("/v2", v2::endpoints())] {
        for (schemas, paths, handler) in endpoints {
            for (path, item) in paths.paths {
                let path = format!("{generation}{path}");
                router = router.route(&format!("{base_path}{path}"), handler.clone());
                document.paths.paths.insert(path, item);
            }
            let components = document.components.get_or_insert_default();
            components.schemas.extend(schemas);
        }
    }
    DocumentedRouter { router, document }
}

/// The document as it is served, and kept beside the code as `openapi.json`.
#[must_use]
pub fn document(base_path: &str) -> String {
    text(&described(base_path).document)
}

/// The document, for people, too.
pub(super) fn text(document: &OpenApi) -> String {
    let text = document.to_pretty_json();
    text.expect("the document is made of strings and numbers, and covered by a test") + "\n"
}

/// What is not an endpoint's.
fn head(base_path: &str) -> OpenApi {
    let info = InfoBuilder::new()
        .title("Cloud Connector")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(ABOUT))
        .license(Some(License::new(env!("CARGO_PKG_LICENSE"))));
    let tags = Callers::ALL.map(|callers| {
        let about = TagBuilder::new().description(Some(callers.about()));
        about.name(callers.tag()).build()
    });
    let mut components = ComponentsBuilder::new()
        .schema("Error", ApiError::schema())
        .responses_from_iter(refusals());
    for (name, scheme) in credentials() {
        components = components.security_scheme(name, scheme);
    }
    OpenApiBuilder::new()
        .info(info.build())
        .servers(Some([Server::new(base_path)]))
        .tags(Some(tags))
        .components(Some(components.build()))
        .build()
}

fn credentials() -> [(&'static str, SecurityScheme); 5] {
    [
        ("client-id", CLIENT_ID, "The name of the caller's key."),
        ("psk", PSK, "The key's secret."),
        (
            "org-id",
            ORG_ID,
            "The organisation that the caller speaks for.",
        ),
        (
            "account",
            ACCOUNT,
            "The account that the caller speaks for.",
        ),
        (
            "identity",
            IDENTITY,
            "Base64 of the identity that a gateway in front has made. Used only where the service is \
             set up to trust it; then it goes before a key.",
        ),
    ]
    .map(|(name, header, about)| {
        let key = ApiKeyValue::with_description(header, about);
        (name, SecurityScheme::ApiKey(ApiKey::Header(key)))
    })
}

/// How any endpoint may refuse.
fn refusals() -> [(&'static str, Response); 7] {
    [
        (
            "BadRequest",
            ResponseBuilder::new()
                .description(
                    "The request cannot be used as it is (JSON), or the identity cannot (text).",
                )
                .content("application/json", error())
                .content("text/plain", plain()),
        ),
        (
            "BadIdentity",
            ResponseBuilder::new()
                .description("The identity cannot be used.")
                .content("text/plain", plain()),
        ),
        (
            "Unauthenticated",
            ResponseBuilder::new()
                .description("`Authentication failed`, whatever the reason.")
                .content("text/plain", plain()),
        ),
        (
            "BodyTimeout",
            ResponseBuilder::new()
                .description("The body did not come in time.")
                .content("application/json", error()),
        ),
        (
            "TooLarge",
            ResponseBuilder::new()
                .description("The body is larger than the service takes (1 MiB, unless it is set up otherwise).")
                .content("application/json", error()),
        ),
        (
            "TooMany",
            ResponseBuilder::new()
                .description("More requests than are granted. Try again later.")
                .header("Retry-After", seconds())
                .content("application/json", error()),
        ),
        (
            "Unavailable",
            ResponseBuilder::new()
                .description(
                    "Something that the answer needs is away: the database, the broker, the service \
                     that knows accounts. Try again later.",
                )
                .header("Retry-After", seconds())
                .content("application/json", error()),
        ),
    ]
    .map(|(name, response)| (name, response.build()))
}

fn error() -> utoipa::openapi::Content {
    let schema = Ref::from_schema_name("Error");
    ContentBuilder::new().schema(Some(schema)).build()
}

fn plain() -> utoipa::openapi::Content {
    let schema = Object::with_type(Type::String);
    ContentBuilder::new().schema(Some(schema)).build()
}

fn seconds() -> utoipa::openapi::header::Header {
    HeaderBuilder::new()
        .schema(Some(Object::with_type(Type::Integer)))
        .description(Some("Seconds to wait before trying again."))
        .build()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    const BASE_PATH: &str = "/api/cloud-connector";

    fn described_operations() -> Vec<Value> {
        let document: Value = serde_json::from_str(&document(BASE_PATH)).unwrap();
        let paths = document["paths"].as_object().unwrap().values();
        let operations = paths.flat_map(|path| path.as_object().unwrap().values());
        operations.cloned().collect()
    }

    #[test]
    fn the_document_in_the_repository_is_the_codes() {
        let kept = include_str!("../../openapi.json");
        assert!(
            kept == document(BASE_PATH),
            "openapi.json is not what the code says; write it anew with `make openapi`"
        );
    }

    #[test]
    fn every_operation_has_a_name_of_its_own_a_summary_and_its_refusals() {
        let mut names = BTreeSet::new();
        for operation in described_operations() {
            let name = operation["operationId"].as_str().unwrap().to_owned();
            assert!(operation["summary"].is_string(), "{name}");
            assert!(operation["security"].is_array(), "{name}");
            for status in ["400", "401", "429", "503"] {
                assert!(
                    operation["responses"][status].is_object(),
                    "{name} {status}"
                );
            }
            assert!(names.insert(name.clone()), "{name} twice");
        }
        for known in [
            "v1.connection.status",
            "v1.connection.status.multiorg",
            "v2.connection.status.multiorg",
        ] {
            assert!(names.contains(known), "callers know {known}");
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let text = document(BASE_PATH);
        let document: Value = serde_json::from_str(&text).unwrap();
        let references = text.split("\"$ref\": \"#").skip(1);
        for reference in references.map(|rest| rest.split('"').next().unwrap()) {
            assert!(document.pointer(reference).is_some(), "{reference}");
        }
    }

    #[test]
    fn paths_are_below_the_base_path() {
        let document: Value = serde_json::from_str(&document("/elsewhere")).unwrap();
        assert_eq!(document["servers"][0]["url"], "/elsewhere");
        assert!(document["paths"]["/v2/connections"].is_object());
    }
}
