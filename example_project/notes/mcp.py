"""
What MCP clients are served: the notes, and tools to change them.
"""

from typing import Any

from django.db.models import Q
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

from example_project.notes.models import Note
from example_project.notes.serializers import NoteSerializer
from mcp_channels import MCPServer, ModelResource
from mcp_channels.server import caller

server = MCPServer("notes", version="1.0.0", instructions="Notes of your own, and those that others share.")
open_server = MCPServer("open notes", version="1.0.0", offers=("resources", "tools"))


@server.register(Note)
class NoteResource(ModelResource):
    """
    A caller's own notes, and those that are shared.
    """

    uri = "note://{pk}"
    scope = "notes:read"
    serializer_class = NoteSerializer
    related = ("tags",)
    description = "A note"

    def get_queryset(self, principal):
        visible = Q(shared=True)
        if principal.user is not None:
            visible |= Q(owner=principal.user)
        return Note.objects.filter(visible)


@open_server.register(Note)
class SharedNoteResource(ModelResource):
    """
    The shared notes, for everybody.
    """

    uri = "note://{pk}"
    serializer_class = NoteSerializer
    description = "A shared note"

    def get_queryset(self, principal):
        return Note.objects.filter(shared=True)


async def _own(context: Context, pk: int) -> Note:
    principal = caller(context).principal
    note = await NoteResource(Note).get_queryset(principal).filter(pk=pk).afirst()
    if note is None:
        raise ToolError(f"There is no note {pk}.")
    return note


@server.tool(scope="notes:write")
async def create_note(context: Context, title: str, body: str = "", shared: bool = False) -> dict[str, Any]:
    """
    Write a note. A service's notes are shared: it has no user whose own they could be.
    """
    owner = caller(context).principal.user
    note = await Note.objects.acreate(owner=owner, title=title, body=body, shared=shared or owner is None)
    return {"id": note.pk, "uri": f"note://{note.pk}"}


@server.tool(scope="notes:write")
async def update_note(
    context: Context, id: int, title: str | None = None, body: str | None = None, shared: bool | None = None
) -> dict[str, Any]:
    """
    Change a note.
    """
    note = await _own(context, id)
    for name, value in (("title", title), ("body", body), ("shared", shared)):
        if value is not None:
            setattr(note, name, value)
    await note.asave()
    return {"id": note.pk, "uri": f"note://{note.pk}"}


@server.tool(scope="notes:write")
async def delete_note(context: Context, id: int) -> str:
    """
    Delete a note.
    """
    note = await _own(context, id)
    await note.adelete()
    return f"Note {id} is gone."


@server.tool()
async def add_tool(name: str) -> str:
    """
    Register one more tool, which answers with its own name.
    """

    async def extra() -> str:
        return name

    server.add_tool(extra, name=name, description=f"Answers {name!r}.")
    return f"The tool {name!r} is there."


@server.tool()
async def remove_tool(name: str) -> str:
    """
    Remove a tool that add_tool registered.
    """
    server.remove_tool(name)
    return f"The tool {name!r} is gone."


@server.prompt()
def summarise_note(title: str) -> str:
    """
    Ask for a summary of a note.
    """
    return f"Summarise the note called {title!r} in one sentence."


@open_server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def count_notes() -> int:
    """
    How many notes are shared.
    """
    return await Note.objects.filter(shared=True).acount()
