"""Large content, stored once, outside the rows: on disk, in the database or in a bucket."""

from urllib.parse import unquote

from holdfast.config import Settings
from holdfast.errors import MissingExtra, UnknownMedia
from holdfast.media.collect import Collection, collect
from holdfast.media.media_store import MediaContext, MediaStore, MediaWriter, digest_of, to_uri
from holdfast.media.messages import externalize, referenced, restore
from holdfast.media.move import Moved, move
from holdfast.plugins import MEDIA, find_plugin
from holdfast.store import Store

__all__ = [
    "Collection",
    "MediaContext",
    "MediaStore",
    "MediaWriter",
    "Moved",
    "collect",
    "digest_of",
    "externalize",
    "move",
    "open_media",
    "referenced",
    "restore",
    "to_uri",
]

_OBJECTS = ("s3", "gs", "az")


def open_media(url: str | None = None, *, store: Store, settings: Settings | None = None) -> MediaStore:
    """Return the media store at a URL: `database`, `disk:///path`, `s3://bucket/prefix`, `gs://…` or `az://…`.

    The default URL is that of `settings`, by default the store's settings. `disk:///var/media` is absolute, `disk://media` is
    relative to the working directory. Buckets need the extra `s3`, and read their credentials and endpoint from the usual
    variables, such as `AWS_ACCESS_KEY_ID` and `AWS_ENDPOINT_URL`. Other packages may register more schemes.
    """
    url = (settings or store.settings).media if url is None else url
    scheme, _, rest = url.partition("://")
    if url == "database":
        from holdfast.media.database import DatabaseMedia

        return DatabaseMedia(store)
    if scheme == "disk" and rest.strip("/") and "\x00" not in rest:
        from holdfast.media.disk import DiskMedia

        return DiskMedia(store, unquote(rest))
    if scheme in _OBJECTS and rest and not {"?", "#"} & {*rest}:  # a query or fragment would be ignored
        try:
            from holdfast.media.s3 import S3Media
        except ModuleNotFoundError as error:
            if error.name != "obstore":
                raise
            raise MissingExtra(extra="s3") from error
        return S3Media.from_url(url, store)
    if rest and (make := find_plugin(MEDIA, scheme)):
        return make(url, store=store)
    raise UnknownMedia(url=url)


MediaStore.opener = open_media
