"""LangGraph with langchain-openai, a streamed node on the wire that is named."""

import sys

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph

if sys.argv[1] == "chat":
    model = ChatOpenAI(
        model="deepseek/deepseek-v3.2",
        base_url="http://127.0.0.1:8080/v1",
        api_key="sk-or-v1-...",
        streaming=True,
    )
else:
    model = ChatOpenAI(
        model="deepseek/deepseek-v3.2",
        base_url="http://127.0.0.1:8080/v1",
        api_key="sk-or-v1-...",
        streaming=True,
        use_responses_api=True,
    )


def write(state: MessagesState) -> MessagesState:
    """Ask the model."""
    return {"messages": [model.invoke(state["messages"])]}


graph = StateGraph(MessagesState)
graph.add_node("write", write)
graph.add_edge(START, "write")
graph.add_edge("write", END)
for update in graph.compile().stream({"messages": [("user", "Write the file.")]}):
    print(update["write"]["messages"][-1].text)
