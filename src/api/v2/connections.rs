//! `GET /v2/connections`: the organisation's connections.

use axum::extract::State;
use axum::http::Uri;

use super::ConnectionView;
use crate::api::Shared;
use crate::api::auth::Caller;
use crate::api::error::ApiError;
use crate::api::json::Json;
use crate::api::pagination::{Page, Paginated};

/// List connections
///
/// The organisation's connections, ordered by client id.
#[utoipa::path(
    get,
    path = "/connections",
    operation_id = "v2.connections.list",
    params(Page),
    responses((status = 200, description = "A page of connections.", body = Paginated<ConnectionView>)),
)]
pub(super) async fn list(
    State(shared): State<Shared>,
    caller: Caller,
    uri: axum::extract::OriginalUri,
) -> Result<Json<Paginated<ConnectionView>>, ApiError> {
    let uri: Uri = uri.0;
    let page = Page::read(&uri, "Invalid request")?;
    let listing = shared
        .store
        .list_for_org(&caller.org, page.offset, page.limit)
        .await?;
    let data = listing.connections.into_iter().map(Into::into).collect();
    Ok(Json(Paginated::new(&uri, page, listing.count, data)))
}
