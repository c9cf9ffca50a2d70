"""What happened and what it cost, for dashboards, finance and the command line: questions to ClickHouse.

Every question names the workspace that asks; nothing here can be asked without one. Reads only. Read next: `question`.
"""
