//! `GET /v2/connections`: the organisation's connections, all or those that filters name, in pages by
//! offset or by cursor.

use axum::extract::{OriginalUri, State};
use axum::http::Uri;
use utoipa::IntoParams;

use super::ConnectionView;
use super::list_filters::{self, FilterParams};
use crate::api::SharedState;
use crate::api::auth::Caller;
use crate::api::error::ApiError;
use crate::api::json::Json;
use crate::api::pagination::{self, Page, Paginated};
use crate::store::{PageRequest, PageStart};

/// What the document says of the cursor.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes; it is read as text")]
struct CursorParam {
    /// Instead of `offset`, for deep pages: empty for the first page, then `meta.cursor` of the page
    /// before. The count is left out.
    cursor: Option<String>,
}

/// List connections
///
/// The organisation's connections, or those that meet all conditions, ordered by client id.
#[utoipa::path(
    get,
    path = "/connections",
    operation_id = "v2.connections.list",
    params(Page, CursorParam, FilterParams),
    responses((status = 200, description = "A page of connections.", body = Paginated<ConnectionView>)),
)]
pub(super) async fn list(
    State(shared): State<SharedState>,
    caller: Caller,
    OriginalUri(uri): OriginalUri,
) -> Result<Json<Paginated<ConnectionView>>, ApiError> {
    let query = pagination::query(&uri);
    let page = Page::read(&uri, "InvalidValue request")?;
    let mut wanted = PageRequest::page(page.offset, page.limit);
    wanted.filter = list_filters::read(&query)?;
    if let Some(cursor) = pagination::last(&query, "cursor") {
        // No client's name holds this: whoever follows stands after what is before it.
        let name = cursor.split('\0').next().unwrap_or_default();
        wanted.start = PageStart::After(name.to_owned());
        return after(&shared, &caller, wanted, &uri).await;
    }
    let listing = shared.store.list_for_org(&caller.org, &wanted).await?;
    let data = listing.connections.into_iter().map(Into::into).collect();
    Ok(Json(Paginated::new(&uri, page, listing.count, data)))
}

/// One more than the page is asked for: whether there is one says whether there is a next page.
async fn after(
    shared: &SharedState,
    caller: &Caller,
    mut wanted: PageRequest,
    uri: &Uri,
) -> Result<Json<Paginated<ConnectionView>>, ApiError> {
    let limit = wanted.limit;
    wanted.limit = if limit == 0 { 0 } else { limit + 1 };
    let listing = shared.store.list_for_org(&caller.org, &wanted).await?;
    let mut connections = listing.connections;
    let has_more = connections.len() as u64 > limit;
    connections.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    let last = connections.last().filter(|_| has_more);
    let next = last.map(|connection| connection.client_id.to_string());
    let data = connections.into_iter().map(Into::into).collect();
    Ok(Json(Paginated::after(uri, limit, next, data)))
}
